"""The KV cache: keep each token's K and V, so that no token is computed twice."""

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

    A step writes its k and v behind the tokens that are stored, attends over all of them, and,
    when every layer has done so, `advance` makes them count.
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
        self.k = torch.zeros(shape, dtype=dtype, device=device)  # [L, S, G, D]
        self.v = torch.zeros(shape, dtype=dtype, device=device)
        self.length = 0  # tokens stored, the same for every layer

    @property
    def capacity(self) -> int:
        """How many tokens fit."""
        return self.k.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes reserved, whether used or not."""
        return self.k.nbytes + self.v.nbytes

    def attend(
        self,
        layer: int,
        q: Float[Tensor, "T H D"],
        k: Float[Tensor, "T G D"],
        v: Float[Tensor, "T G D"],
    ) -> Float[Tensor, "T H D"]:
        """Write the step's k and v behind the stored tokens, then attend over all of them.

        `length` does not change here: every layer of the step writes to the same place.

        Raises:
            CacheFullError: the step's tokens do not fit; nothing was written.

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
        ### BEGIN SOLUTION
        end = self.length + k.shape[0]
        self._require(end <= self.capacity, k.shape[0])
        self.k[layer, self.length : end] = k
        self.v[layer, self.length : end] = v
        window = self.config.window(layer)
        return attention(q, self.k[layer, :end], self.v[layer, :end], window=window)
        ### END SOLUTION

    def advance(self, tokens: int) -> None:
        """Count the tokens that every layer has now written.

        Raises:
            CacheFullError: more than fit.

        >>> cache = ContiguousCache(ModelConfig("llama", 9, 4, 1, 2, 2, 2, 8, 16), capacity=3)
        >>> cache.advance(2)
        >>> cache.length
        2
        """
        ### BEGIN SOLUTION
        self._require(self.length + tokens <= self.capacity, tokens)
        self.length += tokens
        ### END SOLUTION

    def truncate(self, length: int) -> None:
        """Forget all tokens but the first `length`; their memory is written again later.

        Raises:
            ValueError: `length` is negative or more than is stored.

        >>> cache = ContiguousCache(ModelConfig("llama", 9, 4, 1, 2, 2, 2, 8, 16), capacity=3)
        >>> cache.advance(3)
        >>> cache.truncate(1)
        >>> cache.length
        1
        """
        ### BEGIN SOLUTION
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate to {length} tokens: {self.length} are stored.")
        self.length = length
        ### END SOLUTION

    def reset(self) -> None:
        """Forget every token."""
        self.length = 0

    def clone(self) -> Self:
        """A cache of the same capacity with a copy of the stored tokens."""
        other = type(self)(self.config, self.capacity, self.k.dtype, self.k.device)
        other.k[:, : self.length] = self.k[:, : self.length]
        other.v[:, : self.length] = self.v[:, : self.length]
        other.length = self.length
        return other

    def _require(self, fits: bool, tokens: int) -> None:
        if not fits:
            raise CacheFullError(
                f"{tokens} more tokens do not fit: {self.length} of {self.capacity} are stored."
            )


def forward_cached(
    model: Transformer, cache: ContiguousCache, token_ids: Int[Tensor, "T"]
) -> Float[Tensor, "T E"]:
    """Run the next T tokens of a sequence whose earlier tokens are in the cache.

    Their positions go on where the cache ends; afterwards the cache holds them too. Any way of
    cutting a sequence into such steps gives the same hidden states.

    >>> model = Transformer(ModelConfig("llama", 9, 4, 1, 2, 2, 2, 8, 16))
    >>> cache = ContiguousCache(model.config, capacity=5)
    >>> for chunk in ([3, 1, 4], [1], [5]):
    ...     hidden = forward_cached(model, cache, torch.tensor(chunk))
    ...     print(cache.length, list(hidden.shape))
    3 [3, 4]
    4 [1, 4]
    5 [1, 4]
    """
    ### BEGIN SOLUTION
    tokens = len(token_ids)
    positions = torch.arange(cache.length, cache.length + tokens, device=token_ids.device)
    hidden = model(token_ids, positions, cache.attend)
    cache.advance(tokens)
    return hidden
    ### END SOLUTION
