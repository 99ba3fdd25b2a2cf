"""K and V of one sequence, a growing list: what a later lab has to know of lab 02's cache."""

from copy import deepcopy

import torch
from torch import Tensor

from nanovllm.model.attention import attention
from nanovllm.model.config import ModelConfig
from nanovllm.model.transformer import Transformer


class CacheFullError(Exception):
    """More tokens than the cache was made for."""


class ContiguousCache:
    """Not contiguous, in spite of its name: each token copies all that were stored before."""

    def __init__(
        self,
        config: ModelConfig,
        capacity: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        empty = torch.zeros(0, config.num_kv_heads, config.head_dim, dtype=dtype, device=device)
        self.config, self.capacity, self.length, self.device = config, capacity, 0, empty.device
        self.kept = [(empty, empty)] * config.num_layers
        places = 2 * config.num_layers * capacity
        self.nbytes = places * config.num_kv_heads * config.head_dim * dtype.itemsize

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention over what is stored and the step's own."""
        if self.length + len(k) > self.capacity:
            raise CacheFullError(f"{len(k)} more do not fit: {self.length} of {self.capacity}.")
        pairs = zip(self.kept[layer], (k, v), strict=True)
        self.kept[layer] = tuple(torch.cat([old[: self.length], new]) for old, new in pairs)
        return attention(q, *self.kept[layer], window=self.config.window(layer))

    def truncate(self, length: int) -> None:
        """Keep the first tokens only."""
        self.length = length

    def reset(self) -> None:
        """Keep none."""
        self.length = 0

    def clone(self) -> "ContiguousCache":
        """A copy."""
        return deepcopy(self)


def forward_cached(model: Transformer, cache: ContiguousCache, token_ids: Tensor) -> Tensor:
    """Hidden states of the tokens that come next."""
    positions = cache.length + torch.arange(len(token_ids))
    hidden = model(token_ids, positions, cache.attend)
    cache.length += len(token_ids)
    return hidden
