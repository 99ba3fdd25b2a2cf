"""The KV cache: keep each token's K and V, so that no token is computed twice."""

### BEGIN SOLUTION
from typing import Self

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nanovllm.model.attention import attention
from nanovllm.model.config import ModelConfig
from nanovllm.model.transformer import Transformer


class CacheFullError(Exception):
    """More tokens than the cache was made for; nothing was written."""


class ContiguousCache:
    """K and V of one sequence in one piece of memory, reserved once for `capacity` tokens.

    A step writes its k and v behind the stored tokens and attends over all of them, in every
    layer; then `advance` makes them count.

    >>> cache = ContiguousCache(ModelConfig("llama", 9, 4, 1, 2, 2, 2, 8, 16), capacity=3)
    >>> one = torch.ones(1, 2, 2)
    >>> for token in range(3):
    ...     print(cache.attend(0, one, one, token * one)[0, 0, 0].item())
    ...     cache.advance(1)
    0.0
    0.5
    1.0
    >>> cache.attend(0, one, one, one)
    Traceback (most recent call last):
    ...
    nanovllm.model.cache.CacheFullError: 1 more tokens do not fit: 3 of 3 are stored.
    """

    def __init__(
        self,
        config: ModelConfig,
        capacity: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        shape = (config.num_layers, capacity, config.num_kv_heads, config.head_dim)
        self.config = config
        self.capacity = capacity
        self.k = torch.zeros(shape, dtype=dtype, device=device)  # [L, S, G, D]
        self.v = torch.zeros(shape, dtype=dtype, device=device)
        self.length = 0  # tokens stored, the same for every layer

    @property
    def nbytes(self) -> int:
        """Bytes reserved, whether used or not."""
        return self.k.nbytes + self.v.nbytes

    @property
    def device(self) -> torch.device:
        """Where K and V are kept."""
        return self.k.device

    @torch.no_grad()
    def attend(
        self,
        layer: int,
        q: Float[Tensor, "T H D"],
        k: Float[Tensor, "T G D"],
        v: Float[Tensor, "T G D"],
    ) -> Float[Tensor, "T H D"]:
        """Write the step's k and v behind the stored tokens, then attend over all of them.

        `length` does not change here: every layer of the step writes to the same place.
        """
        end = self._end_of(len(k))
        self.k[layer, self.length : end] = k
        self.v[layer, self.length : end] = v
        window = self.config.window(layer)
        return attention(q, self.k[layer, :end], self.v[layer, :end], window=window)

    def advance(self, tokens: int) -> None:
        """Count the tokens that every layer has now written."""
        self.length = self._end_of(tokens)

    def truncate(self, length: int) -> None:
        """Forget all tokens but the first `length`; their memory is written again later."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate to {length} tokens: {self.length} are stored.")
        self.length = length

    def reset(self) -> None:
        """Forget every token."""
        self.length = 0

    def clone(self) -> Self:
        """A cache of the same capacity with a copy of the stored tokens."""
        other = type(self)(self.config, self.capacity, self.k.dtype, self.device)
        other.k[:, : self.length] = self.k[:, : self.length]
        other.v[:, : self.length] = self.v[:, : self.length]
        other.length = self.length
        return other

    def _end_of(self, tokens: int) -> int:
        """Where the stored tokens end with so many more; CacheFullError if they do not fit."""
        if self.length + tokens > self.capacity:
            raise CacheFullError(
                f"{tokens} more tokens do not fit: {self.length} of {self.capacity} are stored."
            )
        return self.length + tokens


def forward_cached(
    model: Transformer, cache: ContiguousCache, token_ids: Int[Tensor, "T"]
) -> Float[Tensor, "T E"]:
    """Run the next T tokens of a sequence whose earlier tokens are in the cache.

    >>> model = Transformer(ModelConfig("llama", 9, 4, 1, 2, 2, 2, 8, 16))
    >>> cache = ContiguousCache(model.config, capacity=5)
    >>> for chunk in ([3, 1, 4], [1], [5]):
    ...     hidden = forward_cached(model, cache, torch.tensor(chunk))
    ...     print(cache.length, list(hidden.shape))
    3 [3, 4]
    4 [1, 4]
    5 [1, 4]
    """
    end = cache._end_of(len(token_ids))  # before the model, which may have no more positions
    positions = torch.arange(cache.length, end, device=token_ids.device)
    hidden = model(token_ids, positions, cache.attend)
    cache.advance(len(token_ids))
    return hidden


### END SOLUTION
