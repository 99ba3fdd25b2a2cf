"""Which parts a family of models is built from (given)."""

from __future__ import annotations

from dataclasses import dataclass

from nanovllm.model.mlp import GeluMLP, SwiGLU
from nanovllm.model.norms import LayerNorm, RMSNorm
from nanovllm.model.positions import LearnedPositions, RotaryPositions


@dataclass(frozen=True)
class Family:
    """The classes that differ between families; all else a `ModelConfig` says."""

    norm: type[RMSNorm] | type[LayerNorm]
    mlp: type[SwiGLU] | type[GeluMLP]
    positions: type[RotaryPositions] | type[LearnedPositions]


_LLAMA = Family(RMSNorm, SwiGLU, RotaryPositions)

FAMILIES = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "mixtral": _LLAMA,  # lab 14 puts experts in the place of its MLPs, here and below
    "qwen2": _LLAMA,
    "qwen2_moe": _LLAMA,
    "qwen3": _LLAMA,
    "qwen3_moe": _LLAMA,
    "gpt2": Family(LayerNorm, GeluMLP, LearnedPositions),
}
