"""K and V of N sequences of equal (padded) length: one rectangle, as static batches need it."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from nanovllm.model.attend import Attend
from nanovllm.model.cache import CacheFullError
from nanovllm.model.config import ModelConfig

# window of a layer -> which of the K stored columns each of the S new ones may see, by row
MaskFor = Callable[[int | None], Bool[Tensor, "N S K"]]


class BatchCache:
    """K and V [L, N, C, G, D]; every step fills the same columns of every row."""

    def __init__(
        self,
        config: ModelConfig,
        num_rows: int,
        capacity: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        shape = (config.num_layers, num_rows, capacity, config.num_kv_heads, config.head_dim)
        self.config = config
        self.k = torch.zeros(shape, dtype=dtype, device=device)
        self.v = torch.zeros(shape, dtype=dtype, device=device)
        self.length = 0  # columns filled

    @property
    def num_rows(self) -> int:
        """Sequences held."""
        return self.k.shape[1]

    @property
    def capacity(self) -> int:
        """Columns reserved for each row."""
        return self.k.shape[2]

    def advance(self, num_columns: int) -> None:
        """Count columns as filled, once every layer has written them."""
        self.length += num_columns

    def reorder(self, parents: Sequence[int]) -> None:
        """Make row i a copy of what row parents[i] was; the number of rows may change.

        >>> config = ModelConfig("llama", 9, 4, 1, 2, 2, 2, 8, 16)
        >>> cache = BatchCache(config, num_rows=2, capacity=1)
        >>> cache.k[:, 0], cache.k[:, 1] = 5.0, 6.0
        >>> cache.reorder([1, 1, 0])
        >>> cache.k[0, :, 0, 0, 0]
        tensor([6., 6., 5.])
        """
        raise NotImplementedError("lab03 task 3: BatchCache.reorder")

    def bind(self, num_columns: int, mask_for: MaskFor | None = None) -> Attend:
        """The attend of a step of `num_columns` new columns: tokens flattened row by row [N*S].

        Without `mask_for` no row is padded and the mask is causal. Raises CacheFullError.
        """
        start, end = self.length, self.length + num_columns
        if end > self.capacity:
            raise CacheFullError(
                f"{num_columns} more columns do not fit: {start} of {self.capacity} are filled."
            )

        masks: dict[int | None, Tensor] = {}  # by window: made once, for all layers that have it

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self.k[layer, :, start:end] = k.unflatten(0, (self.num_rows, num_columns))
            self.v[layer, :, start:end] = v.unflatten(0, (self.num_rows, num_columns))
            window = self.config.window(layer)
            if window not in masks:
                masks[window] = (
                    _causal(start, num_columns, window, q.device)
                    if mask_for is None
                    else mask_for(window)[:, None]  # [N, 1, S, K]
                )
            out = scaled_dot_product_attention(
                q.unflatten(0, (self.num_rows, num_columns)).transpose(1, 2),  # [N, H, S, D]
                self.k[layer, :, :end].transpose(1, 2),  # [N, G, K, D]
                self.v[layer, :, :end].transpose(1, 2),
                attn_mask=masks[window],
                enable_gqa=True,
            )
            return out.transpose(1, 2).flatten(0, 1)  # [N*S, H, D]

        return attend


def _causal(
    start: int, num_columns: int, window: int | None, device: torch.device
) -> Bool[Tensor, "S K"]:
    """Column start + s sees the columns up to its own, of which a window leaves the last ones."""
    column = torch.arange(start, start + num_columns, device=device)[:, None]
    seen = torch.arange(start + num_columns, device=device)
    visible = seen <= column
    return visible if window is None else visible & (seen > column - window)
