"""What a `quantization_config` says of each linear of a folder, and what is written (given)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from nanovllm.model.config import Json
from nanovllm.quantization.errors import QuantizationError
from nanovllm.quantization.scheme import Scheme


@dataclass(frozen=True)
class StoredAs:
    """How a linear lies in a file.

    layout: pack-quantized, int-quantized, gptq, gptq_v2, awq or squeezellm (of its scheme only the
    bits count). activations: whether what it multiplies is rounded to int8 too, with a scale a
    token.
    """

    layout: str
    scheme: Scheme
    activations: bool = False


StoredAt = Callable[[str], StoredAs | None]  # by the linear's name; None where it is not quantized


def read_config(config: Json) -> StoredAt:
    """How each linear is stored: `layers.0.self_attn.q_proj` to StoredAs.

    Raises:
        QuantizationError: what of it this engine does not read.
    """
    method = config.get("quant_method")
    if method not in METHODS:
        raise QuantizationError(
            f"its quant_method is {method!r}, and this engine reads {', '.join(METHODS)}."
        )
    try:
        return METHODS[method](config)
    except (KeyError, TypeError, AttributeError) as error:
        raise QuantizationError(
            f"its quantization_config is not one of {method} ({type(error).__name__}: {error})."
        ) from None


def _gptq(config: Json) -> StoredAt:
    layout = config.get("checkpoint_format") or "gptq"
    _require("checkpoint_format", layout, "gptq", "gptq_v2")
    _require("pack_dtype", config.get("pack_dtype", "int32"), "int32")
    _require("bits", config["bits"], 2, 4, 8)
    if any(not str(rule).startswith("-:") for rule in config.get("dynamic") or {}):
        raise QuantizationError(
            "its config has `dynamic` rules that give some layers another scheme; "
            "one scheme for all is read."
        )
    stored = StoredAs(layout, _scheme(config["bits"], config["group_size"], config.get("sym")))
    return lambda name: stored


def _awq(config: Json) -> StoredAt:
    _require("version", str(config.get("version", "gemm")).lower(), "gemm")
    _require("zero_point", config.get("zero_point", True), True)
    bits = config["bits"] if "bits" in config else config["w_bit"]
    size = config["group_size"] if "group_size" in config else config["q_group_size"]
    _require("bits", bits, 4, 8)
    stored = StoredAs("awq", _scheme(bits, size, symmetric=False))
    return lambda name: stored


def _squeezellm(config: Json) -> StoredAt:
    _require("wbits", config["wbits"], 2, 3, 4)
    stored = StoredAs("squeezellm", Scheme(config["wbits"], None))
    return lambda name: stored


def _compressed_tensors(config: Json) -> StoredAt:
    for key in ("kv_cache_scheme", "transform_config"):
        if config.get(key):
            raise QuantizationError(f"its quantization_config has a {key}, which is not read.")
    sparsity = (config.get("sparsity_config") or {}).get("format", "dense")
    _require("sparsity_config's format", sparsity, "dense")
    ignored = config.get("ignore") or []
    groups = [
        (group["targets"], _of_group(group, group.get("format") or config["format"]))
        for group in config["config_groups"].values()
    ]

    def stored_at(name: str) -> StoredAs | None:
        if any(_matches(target, name) for target in ignored):
            return None
        return next(
            (stored for targets, stored in groups if any(_matches(t, name) for t in targets)), None
        )

    return stored_at


def _of_group(group: Json, layout: str) -> StoredAs:
    """A group of compressed-tensors' config: which numbers the weights and the activations get."""
    _require("format", layout, "pack-quantized", "int-quantized")
    weights, activations = group["weights"], group.get("input_activations")
    _require("output_activations", group.get("output_activations"), None)
    _require("type of weights", weights.get("type", "int"), "int")
    _require("strategy of weights", weights["strategy"], "group", "channel")
    if layout == "int-quantized":
        _require("num_bits of int-quantized weights", weights["num_bits"], 8)
    if activations is not None:
        _require("format of weights with activations", layout, "int-quantized")
        _require("symmetric of weights with activations", weights.get("symmetric", True), True)
        _require("strategy of weights with activations", weights["strategy"], "channel")
        for key, wanted in _ACTIVATIONS.items():
            _require(f"{key} of input_activations", activations.get(key), wanted)
    size = weights["group_size"] if weights["strategy"] == "group" else None
    scheme = _scheme(weights["num_bits"], size, weights.get("symmetric", True))
    return StoredAs(layout, scheme, activations is not None)


_ACTIVATIONS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token",
                "dynamic": True}  # fmt: skip
METHODS = {"compressed-tensors": _compressed_tensors, "gptq": _gptq, "awq": _awq,
           "squeezellm": _squeezellm}  # fmt: skip


def _require(what: str, value: object, *known: object) -> None:
    if value not in known:
        raise QuantizationError(
            f"its {what} is {value!r}, and this engine reads {' or '.join(map(repr, known))}."
        )


def _scheme(bits: int, group_size: int | None, symmetric: object) -> Scheme:
    return Scheme(bits, None if group_size == -1 else group_size, bool(symmetric))


def _matches(target: str, name: str) -> bool:
    """Whether a target of compressed-tensors is a linear: its class, its name, or `re:` a pattern.

    >>> _matches("re:.*q_proj", "layers.0.self_attn.q_proj"), _matches("lm_head", "layers.0.x")
    (True, False)
    """
    name = f"model.{name}"  # as transformers calls it
    if target.startswith("re:"):
        return re.match(target.removeprefix("re:"), name) is not None
    return target in ("Linear", name)


def write_config(stored: StoredAs) -> Json:
    """The `quantization_config` of a folder whose linears are all stored in one way."""
    scheme = stored.scheme
    size = -1 if scheme.group_size is None else scheme.group_size
    if stored.layout.startswith("gptq"):
        return {"quant_method": "gptq", "checkpoint_format": stored.layout, "bits": scheme.bits,
                "group_size": size, "sym": scheme.symmetric, "desc_act": False,
                "lm_head": False}  # fmt: skip
    if stored.layout == "squeezellm":
        return {"quant_method": "squeezellm", "wbits": scheme.bits}
    if stored.layout == "awq":
        return {"quant_method": "awq", "version": "gemm", "bits": scheme.bits, "group_size": size,
                "zero_point": True, "modules_to_not_convert": None}  # fmt: skip
    weights = {"num_bits": scheme.bits, "type": "int", "symmetric": scheme.symmetric,
               "strategy": "channel" if scheme.group_size is None else "group",
               "group_size": scheme.group_size, "dynamic": False}  # fmt: skip
    group = {"targets": ["Linear"], "weights": weights, "output_activations": None,
             "input_activations": dict(_ACTIVATIONS) if stored.activations else None}  # fmt: skip
    return {"quant_method": "compressed-tensors", "format": stored.layout, "ignore": ["lm_head"],
            "quantization_status": "compressed", "config_groups": {"group_0": group}}  # fmt: skip
