"""The one interface between the model and whatever keeps K and V (given)."""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

from nanovllm.model.attention import attention
from nanovllm.model.config import ModelConfig

# attend(layer, q [T,H,D], k [T,G,D], v [T,G,D]) -> [T,H,D]: the model hands over the step's own k
# and v; what else there is to look at, the attend knows.
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class RecomputeAttend:
    """No cache: the step's T tokens are the whole sequence, and attend to one another."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config

    def __call__(
        self,
        layer: int,
        q: Float[Tensor, "T H D"],
        k: Float[Tensor, "T G D"],
        v: Float[Tensor, "T G D"],
    ) -> Float[Tensor, "T H D"]:
        return attention(q, k, v, window=self.config.window(layer))
