"""A model with experts: built, and read from its folder (given)."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from nanovllm.model.checkpoint_names import module_tensors
from nanovllm.model.config import ModelConfig
from nanovllm.model.errors import ModelFolderError
from nanovllm.model.loader import (
    fill,
    read_quantization,
    read_tensors,
    resolve_folder,
    settle_tying,
    without_memory,
)
from nanovllm.model.transformer import Transformer
from nanovllm.performance.errors import PerformanceError
from nanovllm.performance.moe import MoE, stack_experts

EXPERT = re.compile(r"layers\.(\d+)\.mlp\.experts\.(\d+\..+)")


def with_experts(model: Transformer) -> Transformer:
    """Put `MoE` in the place of the MLP of each sparse layer; gives the model back."""
    experts = model.config.experts
    for layer in experts.layers if experts else ():
        cast(Any, model.layers[layer]).mlp = MoE(model.config)
    return model


def load_experts(
    folder: str | Path,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Transformer:
    """The model of a folder or hub name with experts: Mixtral, Qwen2-MoE, Qwen3-MoE.

    Raises ModelFolderError: the folder cannot be read, or its experts are quantized.
    """
    folder = resolve_folder(folder)
    config = ModelConfig.from_pretrained(folder)
    if read_quantization(folder) is not None:
        raise ModelFolderError(
            f"{folder} holds a mixture of experts with quantized weights, which this engine does "
            "not read; choose the unquantized model."
        )
    weights: dict[str, Tensor] = {}
    parts: dict[str, dict[str, Tensor]] = defaultdict(dict)
    count = config.experts.num_experts if config.experts else 0
    for name, tensor in read_tensors(folder):
        name = name.replace(".block_sparse_moe.", ".mlp.")
        for target, value in module_tensors(config.family, name, tensor):
            value, expert = value.to(device=device, dtype=dtype), EXPERT.fullmatch(target)
            if expert is None:
                weights[target] = value
                continue
            parts[f"layers.{expert[1]}.mlp"][expert[2]] = value
    for layer in list(parts):
        both = _stack(folder, layer, parts.pop(layer), count)  # one layer is in memory twice
        weights[f"{layer}.gate_up"], weights[f"{layer}.down"] = both
    config = settle_tying(config, weights)
    with without_memory():
        model = with_experts(Transformer(config))
    return fill(folder, model, weights)


def _stack(
    folder: Path, layer: str, tensors: dict[str, Tensor], count: int
) -> tuple[Tensor, Tensor]:
    try:
        return stack_experts(tensors, count)
    except (PerformanceError, RuntimeError) as error:  # torch's: of different shapes
        raise ModelFolderError(
            f"the experts of {layer} in {folder} cannot be used: {error} Download the folder again."
        ) from None
