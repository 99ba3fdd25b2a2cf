"""Which parts a family of models is built from (given)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from nanovllm.model.config import ModelConfig
from nanovllm.model.mlp import GeluMLP, SwiGLU
from nanovllm.model.norms import LayerNorm, RMSNorm
from nanovllm.model.positions import LearnedPositions, RotaryPositions


@dataclass(frozen=True)
class Family:
    """The classes that differ between families; all else a `ModelConfig` says."""

    norm: Callable[[int, float], nn.Module]
    mlp: Callable[[ModelConfig], nn.Module]
    positions: Callable[[ModelConfig], nn.Module]


_LLAMA = Family(RMSNorm, SwiGLU, RotaryPositions)

FAMILIES = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "gpt2": Family(LayerNorm, GeluMLP, LearnedPositions),
}
