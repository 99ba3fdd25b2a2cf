"""From a folder or hub name to a `Transformer` with its weights (given)."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nanovllm.model.checkpoint_names import module_tensors
from nanovllm.model.config import Json, ModelConfig, read_json
from nanovllm.model.errors import ModelFolderError
from nanovllm.model.transformer import Transformer

WANTED = ("*.json", "*.safetensors", "*.jinja", "merges.txt")


def resolve_folder(name: str | Path) -> Path:
    """The local folder of a model: itself, or the snapshot of a Hugging Face hub name.

    With HF_HUB_OFFLINE=1 only snapshots that are already in the hub's cache are used.

    Raises:
        ModelFolderError: no such folder, and no such name on the hub or in its cache.
    """
    if str(name) and Path(name).is_dir():
        return Path(name)
    way_out = "name a local folder that holds config.json and *.safetensors, or a hub name"
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", str(name)) or str(name).startswith("."):
        raise ModelFolderError(f"there is no folder {str(name)!r}; {way_out} like Qwen/Qwen3-0.6B.")
    # Imported here: a local folder, the usual case, needs nothing of the hub.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(str(name), allow_patterns=list(WANTED)))
    except LocalEntryNotFoundError:
        raise ModelFolderError(
            f"there is no folder {str(name)!r}, and no model of that name in the hub's cache, "
            "and the hub was not asked or not reached (HF_HUB_OFFLINE, no network); "
            f"{way_out}, or download it while online."
        ) from None
    except HfHubHTTPError as error:
        status = getattr(error.response, "status_code", "no answer")
        raise ModelFolderError(
            f"there is no folder {str(name)!r}, and the hub refuses that name ({status}: not "
            f"there, private or gated); check the spelling, log in with `hf auth login`, "
            f"or {way_out}."
        ) from None
    except (HFValidationError, OSError) as error:
        raise ModelFolderError(
            f"{str(name)!r} is not a folder and cannot be fetched from the hub ({error}); "
            f"{way_out}."
        ) from None


def load_config(folder: str | Path) -> ModelConfig:
    """Read the `ModelConfig` of a folder or hub name; raises ModelFolderError."""
    return ModelConfig.from_pretrained(resolve_folder(folder))


def load_model(
    folder: str | Path,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Transformer:
    """Build the model of a folder or hub name and fill it with the weights of its safetensors.

    Raises:
        ModelFolderError: one sentence on what is wrong with the folder, and the way out.
    """
    folder = resolve_folder(folder)
    config = ModelConfig.from_pretrained(folder)
    if read_quantization(folder) is not None:
        raise ModelFolderError(
            f"{folder} holds quantized weights, which lab 09 reads: load it with LLM, "
            "or choose the unquantized model."
        )
    if config.experts is not None:
        raise ModelFolderError(
            f"{folder} holds a mixture of experts, which lab 14 reads: load it with LLM, "
            "or choose a dense model."
        )
    weights: dict[str, Tensor] = {}
    for name, tensor in read_tensors(folder):
        for target, value in module_tensors(config.family, name, tensor):
            weights[target] = value.to(device=device, dtype=dtype)
    return fill(folder, empty_model(settle_tying(config, weights)), weights)


class _Unset(TorchFunctionMode):
    """torch.nn.init leaves tensors as they are: without memory there is nothing to set, and its
    normal_ would import torch's compiler for that, a second of every start."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Json | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return kwargs.get("tensor", args[0] if args else None)
        return func(*args, **kwargs)


@contextmanager
def without_memory() -> Iterator[None]:
    """Modules that are made within have shapes, but no memory yet."""
    with torch.device("meta"), _Unset():
        yield


def empty_model(config: ModelConfig) -> Transformer:
    """A model of shapes without memory: weights that were read become its own with `fill`."""
    with without_memory():
        return Transformer(config)


def read_quantization(folder: Path) -> Json | None:
    """The `quantization_config` of a folder's config.json; None where weights are as they are."""
    return read_json(folder / "config.json").get("quantization_config")


def read_tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a folder's safetensors, by its name there. Raises ModelFolderError."""
    for path in weight_files(folder):
        yield from _read(path)


def fill(folder: Path, model: Transformer, weights: dict[str, Tensor]) -> Transformer:
    """Make `weights`, read from `folder`, the model's own; it is there to compute, not to train.

    Raises:
        ModelFolderError: a tensor is missing, too many or of another shape.
    """
    check_tensors(folder, model, weights)
    model.load_state_dict(weights, assign=True)
    return model.eval().requires_grad_(False)


def dummy_model(
    config: ModelConfig,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Transformer:
    """A model of random weights, scaled so that logits spread and attention is not flat."""
    generator = torch.Generator().manual_seed(seed)
    model, weights = empty_model(config), {}
    for name, slot in model.state_dict().items():
        noise = torch.randn(slot.shape, generator=generator)
        if "norm" in name:
            noise = noise * 0.2 + (0.0 if name.endswith("bias") else 1.0)
        elif slot.ndim == 1:
            noise = noise * 0.5
        elif "embed_tokens" not in name and "positions" not in name:
            noise = noise * 1.5 * slot.shape[1] ** -0.5
        weights[name] = noise.to(device=device, dtype=dtype)
    model.load_state_dict(weights, assign=True)
    return model.eval().requires_grad_(False)


def weight_files(folder: Path) -> list[Path]:
    """`model.safetensors`, or the shards that `model.safetensors.index.json` lists."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
            shards = sorted(set(names))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelFolderError(
                f"{index} is not an index of shards ({error!r}); download it again."
            ) from None
        missing = [shard for shard in shards if not (folder / shard).is_file()]
        if missing:
            raise ModelFolderError(
                f"{folder} lacks {len(missing)} of {len(shards)} weight files that its index "
                f"lists, the first being {missing[0]}; download the folder again."
            )
        return [folder / shard for shard in shards]
    files = sorted(folder.glob("*.safetensors"))
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    if len(files) == 1:
        return files
    if files:
        raise ModelFolderError(
            f"{folder} holds {len(files)} safetensors files but no model.safetensors.index.json "
            "that says how they belong together; download that file too."
        )
    pickled = "only pytorch_model*.bin, which" if any(folder.glob("*.bin")) else "no weights that"
    raise ModelFolderError(
        f"{folder} holds {pickled} this engine can read; it needs *.safetensors (transformers' "
        "save_pretrained writes them)."
    )


def _read(path: Path) -> Iterator[tuple[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  (not a dict)
                yield name, file.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise ModelFolderError(
            f"{path} is cut short or not a safetensors file ({error}); download it again."
        ) from None


def settle_tying(config: ModelConfig, weights: dict[str, Tensor]) -> ModelConfig:
    """A tied file holds one of the two matrices; one that holds two different ones is not tied."""
    embedding, head = weights.get("embed_tokens.weight"), weights.get("lm_head.weight")
    if not config.tie_embeddings or head is None:
        return config
    if embedding is None:
        weights["embed_tokens.weight"] = head
    elif not torch.equal(embedding, head):
        return dataclasses.replace(config, tie_embeddings=False)
    del weights["lm_head.weight"]
    return config


def check_tensors(folder: Path, model: nn.Module, weights: Mapping[str, Any]) -> None:
    """Raise ModelFolderError unless the folder has a tensor of the right shape for each place."""
    wanted = model.state_dict()
    for name, slot in wanted.items():
        if name not in weights:
            raise ModelFolderError(
                f"the weights in {folder} lack the tensor for {name}, which its config.json asks "
                "for; the files are incomplete or belong to another config: download them again."
            )
        if weights[name].shape != slot.shape:
            raise ModelFolderError(
                f"in {folder} the tensor for {name} has shape {list(weights[name].shape)} where "
                f"its config.json asks for {list(slot.shape)}; config and weights do not belong "
                "together: download both again."
            )
    extra = sorted(set(weights) - set(wanted))
    if extra:
        raise ModelFolderError(
            f"the weights in {folder} hold {len(extra)} tensors that its config.json has no "
            f"place for, the first being {extra[0]}; config and weights do not belong together: "
            "download both again."
        )
