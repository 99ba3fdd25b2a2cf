"""`--models a=PATH,b=PATH`: which models those are, and what each takes of the memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanovllm.cluster.model_specs import ModelSpec
from nanovllm.llm.engine_options import read_engine_options
from nanovllm.llm.kv_codes import token_bytes
from nanovllm.llm.read_options import OptionError, read_device, read_dtype, read_max_model_len
from nanovllm.model.accounting import weight_count
from nanovllm.model.config import ModelConfig
from nanovllm.model.experts import extra_weights
from nanovllm.model.loader import read_quantization, resolve_folder, weight_files

if TYPE_CHECKING:
    import torch


def read_models(text: str, option: str = "--models") -> dict[str, Path]:
    """Names and folders of `a=PATH,b=PATH`. Raises OptionError, ModelFolderError."""
    found: dict[str, Path] = {}
    for pair in text.split(","):
        name, equals, folder = (part.strip() for part in pair.partition("="))
        if not (name and equals and folder):
            raise OptionError(
                f"{option} {pair!r} is not of the form NAME=PATH; give a=PATH,b=PATH."
            )
        if name in found:
            raise OptionError(f"{option} names {name!r} twice; each model has a name of its own.")
        found[name] = resolve_folder(folder)
    return found


def model_bytes(
    folder: Path,
    dtype: str | torch.dtype | None,
    device: str | torch.device | None,
    max_model_len: int | None,
    options: dict[str, Any],
) -> int:
    """Bytes of weights, K and V of a model as LLM would load it. Raises OptionError.

    Weights that are rounded at the load count in full: they are read whole before.
    """
    config, asked = ModelConfig.from_pretrained(folder), read_engine_options(options)
    where = read_device(device)
    if asked.num_ranks > 1:
        raise OptionError("--models does not go with several ranks; leave out the parallel sizes.")
    itemsize = read_dtype(dtype, folder, where).itemsize
    if read_quantization(folder) is None:
        weights = (weight_count(config) + extra_weights(config)) * itemsize
    else:
        weights = sum(file.stat().st_size for file in weight_files(folder))
    per_token = token_bytes(config, itemsize, asked)
    length = read_max_model_len(max_model_len, config.max_position)
    return weights + asked.num_blocks(length, per_token, where) * asked.block_size * per_token


def model_specs(folders: dict[str, Path], **how: Any) -> list[ModelSpec]:
    """A ModelSpec for each folder; `how` are the further arguments of model_bytes."""
    return [ModelSpec(name, model_bytes(folder, **how)) for name, folder in folders.items()]
