"""The shape of a model, read from the `config.json` of its folder (given)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanovllm.model.errors import ModelFolderError
from nanovllm.model.experts import ExpertsConfig, mixtral_experts, qwen_experts

Json = dict[str, Any]


@dataclass(frozen=True)
class RopeScaling:
    """How a model stretches RoPE beyond the context it was trained on; `kind` names the formula."""

    kind: str  # "linear", "llama3" or "yarn"
    factor: float
    original_max_position: int
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float | None = None  # yarn: multiplies cos and sin
    truncate: bool = True  # yarn: round the ends of the ramp to whole dimensions


@dataclass(frozen=True)
class ModelConfig:
    """All that the code must know of a model; the dimension letters are those of the handout."""

    family: str  # key of `registry.FAMILIES`
    vocab_size: int  # V
    hidden_size: int  # E
    num_layers: int  # L
    num_heads: int  # H
    num_kv_heads: int  # G
    head_dim: int  # D, which need not be E / H
    intermediate_size: int
    max_position: int
    norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    windows: tuple[int | None, ...] = ()  # sliding window of each layer; () means none anywhere
    tie_embeddings: bool = False
    qk_norm: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int | None = None
    experts: ExpertsConfig | None = None  # in place of the MLP of some layers (lab 14)

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads")
        for name in (*sizes, "head_dim", "intermediate_size", "max_position"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a positive whole number, but is {value!r}.")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads ({self.num_heads}) must be a multiple of num_kv_heads "
                f"({self.num_kv_heads}): each key/value head serves an equal group of query heads."
            )
        if self.windows and len(self.windows) != self.num_layers:
            raise ValueError(
                f"windows has {len(self.windows)} entries for {self.num_layers} layers."
            )

    @property
    def group_size(self) -> int:
        """Query heads that share one key/value head: H / G."""
        return self.num_heads // self.num_kv_heads

    @property
    def sliding_window(self) -> int | None:
        """The sliding window of the layers that have one, or None when no layer has one."""
        return next((window for window in self.windows if window is not None), None)

    def window(self, layer: int) -> int | None:
        """How many tokens, itself included, a query of this layer sees; None means all before."""
        return self.windows[layer] if self.windows else None

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> ModelConfig:
        """Read `config.json` (and the end-of-sequence ids of `generation_config.json`).

        Understands both spellings of RoPE: `rope_theta` and `rope_scaling` at the top, and
        `rope_parameters` as transformers 5 writes it.

        Raises:
            ModelFolderError: no config.json, not JSON, a family or feature this course lacks.
        """
        folder = Path(folder)
        raw = read_json(folder / "config.json")
        family = raw.get("model_type")
        if family not in _READERS:
            raise ModelFolderError(
                f"{folder} holds a model of family {family!r}, which this engine does not know; "
                f"choose a model of one of: {', '.join(sorted(_READERS))}."
            )
        for key, why in _UNSUPPORTED.items():
            if raw.get(key):
                raise ModelFolderError(f"{folder}/config.json sets {key}, {why}.")
        generation = folder / "generation_config.json"
        stops = _eos_ids(raw)
        if generation.is_file():
            stops += tuple(i for i in _eos_ids(read_json(generation)) if i not in stops)
        try:
            return cls(
                family=family,
                bos_token_id=raw.get("bos_token_id"),
                eos_token_ids=stops,
                pad_token_id=raw.get("pad_token_id"),
                **_READERS[family](raw),
            )
        except KeyError as error:
            raise ModelFolderError(
                f"{folder}/config.json has no {error}, which a {family} model needs; "
                "copy the file from the model's page again."
            ) from None
        except (TypeError, ValueError) as error:
            raise ModelFolderError(f"{folder}/config.json cannot be used: {error}") from None


_UNSUPPORTED = {
    "add_cross_attention": "but this engine has decoders only; choose a decoder-only model",
    "scale_attn_by_inverse_layer_idx": "a variant of GPT-2 that this engine does not have; "
    "choose the usual GPT-2",
}


def read_json(path: Path) -> Json:
    """The object in a JSON file of a model folder. Raises ModelFolderError."""
    if not path.is_file():
        raise ModelFolderError(
            f"{path} is missing, so {path.parent} is not a model folder; name a folder in Hugging "
            "Face format, which holds config.json, tokenizer.json and *.safetensors."
        )
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelFolderError(
            f"{path} is not valid JSON ({error}); copy the file from the model's page again."
        ) from None
    if not isinstance(data, dict):
        raise ModelFolderError(
            f"{path} holds a JSON {type(data).__name__} where an object is expected; "
            "copy the file from the model's page again."
        )
    return data


def _eos_ids(raw: Json) -> tuple[int, ...]:
    """One id, a list of ids or none: configs have all three."""
    ids = raw.get("eos_token_id")
    if ids is None:
        return ()
    return tuple(ids) if isinstance(ids, list) else (ids,)


def _require_activation(raw: Json, key: str, known: tuple[str, ...]) -> None:
    activation = raw.get(key, known[0])
    if activation not in known:
        raise ValueError(
            f"its activation {activation!r} is not one this engine has for this family "
            f"({', '.join(known)})."
        )


def _rope_scaling(raw: Json, rope: Json) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if rope.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0)) != 1.0:
        raise ValueError("it rotates only a part of each head, which this engine does not do.")
    if kind in (None, "default"):
        return None
    if kind not in ("linear", "llama3", "yarn"):
        raise ValueError(
            f"its RoPE scaling {kind!r} is not one this engine has (linear, llama3, yarn)."
        )
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        raise ValueError("its yarn scaling sets mscale, which this engine does not have.")
    original = rope.get("original_max_position_embeddings")
    return RopeScaling(
        kind=kind,
        factor=float(rope["factor"]),
        original_max_position=int(original or raw["max_position_embeddings"]),
        low_freq_factor=float(rope.get("low_freq_factor", 1.0)),
        high_freq_factor=float(rope.get("high_freq_factor", 4.0)),
        beta_fast=float(rope.get("beta_fast") or 32.0),
        beta_slow=float(rope.get("beta_slow") or 1.0),
        attention_factor=rope.get("attention_factor"),
        truncate=bool(rope.get("truncate", True)),
    )


def _rope(raw: Json) -> Json:
    """RoPE from `rope_parameters` (transformers 5), else from the older top-level keys."""
    rope = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    if any(isinstance(value, dict) for value in rope.values()):
        raise ValueError("it has another RoPE for each kind of layer, which this engine does not.")
    theta = rope.get("rope_theta", raw.get("rope_theta"))
    return {
        "rope_theta": float(10_000.0 if theta is None else theta),
        "rope_scaling": _rope_scaling(raw, rope),
    }


def _llama(raw: Json, default_head_dim: int | None = None) -> Json:
    """The fields that Llama, Mistral, Qwen2 and Qwen3 share."""
    _require_activation(raw, "hidden_act", ("silu",))
    hidden, heads = raw["hidden_size"], raw["num_attention_heads"]
    head_dim = raw.get("head_dim") or default_head_dim or hidden // heads
    if head_dim % 2:
        raise ValueError(f"its head_dim {head_dim} is odd, and RoPE turns pairs of dimensions.")
    return {
        "vocab_size": raw["vocab_size"],
        "hidden_size": hidden,
        "num_layers": raw["num_hidden_layers"],
        "num_heads": heads,
        "num_kv_heads": raw.get("num_key_value_heads") or heads,
        "head_dim": head_dim,
        "intermediate_size": raw["intermediate_size"],
        "max_position": raw["max_position_embeddings"],
        "norm_eps": raw.get("rms_norm_eps", 1e-6),
        "tie_embeddings": bool(raw.get("tie_word_embeddings", False)),
        "qkv_bias": bool(raw.get("attention_bias", False)),
        "output_bias": bool(raw.get("attention_bias", False)),
        "mlp_bias": bool(raw.get("mlp_bias", False)),
        **_rope(raw),
    }


def _mistral(raw: Json) -> Json:
    window = raw.get("sliding_window")
    windows = (window,) * raw["num_hidden_layers"] if window is not None else ()
    biases = {"qkv_bias": False, "output_bias": False, "mlp_bias": False}
    return {**_llama(raw), **biases, "windows": windows}


def _qwen_windows(raw: Json) -> tuple[int | None, ...]:
    """Qwen lists the kind of each layer, or slides from layer `max_window_layers` upwards."""
    if not raw.get("use_sliding_window") or raw.get("sliding_window") is None:
        return ()
    layers = raw["num_hidden_layers"]
    kinds = raw.get("layer_types") or [
        "sliding_attention" if layer >= raw.get("max_window_layers", 28) else "full_attention"
        for layer in range(layers)
    ]
    if set(kinds) - {"sliding_attention", "full_attention"}:
        raise ValueError(f"its layer_types {sorted(set(kinds))} are not all known.")
    return tuple(raw["sliding_window"] if kind[0] == "s" else None for kind in kinds)


def _qwen2(raw: Json) -> Json:
    biases = {"qkv_bias": True, "output_bias": False, "mlp_bias": False}
    return {**_llama(raw), **biases, "windows": _qwen_windows(raw)}


def _qwen3(raw: Json) -> Json:
    shape = _llama(raw, default_head_dim=128)
    return {**shape, "mlp_bias": False, "qk_norm": True, "windows": _qwen_windows(raw)}


def _mixtral(raw: Json) -> Json:
    defaults = {"rope_theta": 1e6, "rms_norm_eps": 1e-5}
    return {**_mistral({**defaults, **raw}), "experts": mixtral_experts(raw)}


def _qwen2_moe(raw: Json) -> Json:
    shape = {**_qwen2(raw), "qkv_bias": bool(raw.get("qkv_bias", True))}
    return {**shape, "experts": qwen_experts(raw, shared=True)}


def _qwen3_moe(raw: Json) -> Json:
    shape = _llama(raw)
    window = raw.get("sliding_window") if raw.get("use_sliding_window") else None
    windows = (window,) * raw["num_hidden_layers"] if window is not None else ()
    experts = qwen_experts(raw, shared=False)
    return {**shape, "mlp_bias": False, "qk_norm": True, "windows": windows, "experts": experts}


def _gpt2(raw: Json) -> Json:
    _require_activation(raw, "activation_function", ("gelu_new", "gelu_pytorch_tanh"))
    if not raw.get("scale_attn_weights", True):
        raise ValueError("its attention scores are not scaled, which this engine does not have.")
    hidden, heads = raw["n_embd"], raw["n_head"]
    if hidden % heads:
        raise ValueError(f"its n_embd {hidden} is not a multiple of its n_head {heads}.")
    return {
        "vocab_size": raw["vocab_size"],
        "hidden_size": hidden,
        "num_layers": raw["n_layer"],
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_dim": hidden // heads,
        "intermediate_size": raw.get("n_inner") or 4 * hidden,
        "max_position": raw.get("n_positions", 1024),
        "norm_eps": raw.get("layer_norm_epsilon", 1e-5),
        "tie_embeddings": bool(raw.get("tie_word_embeddings", True)),
        "qkv_bias": True,
        "output_bias": True,
        "mlp_bias": True,
    }


_READERS = {
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "gpt2": _gpt2,
}
