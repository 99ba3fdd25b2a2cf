"""How a model learns where a token stands: by turning q and k, or by adding a vector (given)."""

from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from nanovllm.model.config import ModelConfig
from nanovllm.model.rope import (
    SCALINGS,
    apply_rope,
    cosine_scale,
    inverse_frequencies,
    rotation_angles,
)


class Rotation(Protocol):
    """What the positions of one step do to queries and keys."""

    def apply(self, x: Float[Tensor, "T H D"]) -> Float[Tensor, "T H D"]: ...


@dataclass(frozen=True)
class RopeRotation:
    """The angles of one step's tokens, computed once and used by every layer."""

    cos: Float[Tensor, "T D/2"]
    sin: Float[Tensor, "T D/2"]

    def apply(self, x: Float[Tensor, "T H D"]) -> Float[Tensor, "T H D"]:
        return apply_rope(x, self.cos, self.sin)


class NoRotation:
    """Queries and keys stay as they are."""

    def apply(self, x: Float[Tensor, "T H D"]) -> Float[Tensor, "T H D"]:
        return x


class RotaryPositions(nn.Module):
    """Llama, Mistral, Qwen: nothing is added to the embedding; q and k are turned."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self._frequencies: Tensor | None = None

    def frequencies(self, device: torch.device) -> Float[Tensor, "D/2"]:
        """The model's frequencies with its scaling, computed at first use and kept."""
        if self._frequencies is None or self._frequencies.device != device:
            scaling = self.config.rope_scaling
            plain = inverse_frequencies(self.config.head_dim, self.config.rope_theta)
            scaled = SCALINGS[scaling.kind](plain, scaling) if scaling else plain
            self._frequencies = scaled.to(device)
        return self._frequencies

    def embed(
        self, hidden: Float[Tensor, "T E"], positions: Int[Tensor, "T"]
    ) -> Float[Tensor, "T E"]:
        return hidden

    def rotation(self, positions: Int[Tensor, "T"]) -> RopeRotation:
        cos, sin = rotation_angles(positions, self.frequencies(positions.device))
        scale = cosine_scale(self.config.rope_scaling)
        return RopeRotation(cos, sin) if scale == 1.0 else RopeRotation(cos * scale, sin * scale)


class LearnedPositions(nn.Module):
    """GPT-2: a learned vector for each position is added to the embedding."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.max_position, config.hidden_size))
        nn.init.normal_(self.weight, std=0.02)

    def embed(
        self, hidden: Float[Tensor, "T E"], positions: Int[Tensor, "T"]
    ) -> Float[Tensor, "T E"]:
        return hidden + self.weight[positions]

    def rotation(self, positions: Int[Tensor, "T"]) -> NoRotation:
        return NoRotation()
