"""K and V in blocks, on the device and, for requests that were swapped out, in host memory."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nanovllm.model.config import ModelConfig

Pairs = Sequence[tuple[int, int]]  # (from block, to block)


class PagedCache:
    """k, v [L, B, P, G, D] on the device; host_k, host_v [L, B', P, G, D] in host memory.

    Which block is whose, it does not know: it is told slots and block numbers.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        num_host_blocks: int = 0,
    ) -> None:
        block = (block_size, config.num_kv_heads, config.head_dim)
        shape = (config.num_layers, num_blocks, *block)
        host_shape = (config.num_layers, num_host_blocks, *block)
        self.k = torch.zeros(shape, dtype=dtype, device=device)
        self.v = torch.zeros(shape, dtype=dtype, device=device)
        self.host_k = torch.empty(host_shape, dtype=dtype)  # takes memory once it is written
        self.host_v = torch.empty(host_shape, dtype=dtype)

    @property
    def num_blocks(self) -> int:
        """Blocks on the device."""
        return self.k.shape[1]

    @property
    def block_size(self) -> int:
        """Tokens a block."""
        return self.k.shape[2]

    @property
    def device(self) -> torch.device:
        """Where the blocks are."""
        return self.k.device

    @property
    def nbytes(self) -> int:
        """Bytes reserved on the device, whether used or not."""
        return self.k.nbytes + self.v.nbytes

    def write(
        self,
        layer: int,
        k: Float[Tensor, "T G D"],
        v: Float[Tensor, "T G D"],
        slot_mapping: Int[Tensor, "T"],
    ) -> None:
        """Put every token's k and v of one layer into its slot; slot -1 is written nowhere.

        They have the dtype of the cache.

        >>> cache = PagedCache(ModelConfig("llama", 9, 4, 1, 2, 1, 2, 8, 16), 2, block_size=2)
        >>> one = torch.ones(3, 1, 2)
        >>> cache.write(0, one, one, torch.tensor([3, -1, 0]))
        >>> cache.k[0, :, :, 0, 0]
        tensor([[1., 0.],
                [0., 1.]])
        """
        raise NotImplementedError("lab05 task 4: PagedCache.write")

    def copy_blocks(self, pairs: Pairs) -> None:
        """Copy whole blocks, K and V of all layers; no block is both read and written."""
        raise NotImplementedError("lab05 task 4: PagedCache.copy_blocks")

    def swap_out(self, pairs: Pairs) -> None:
        """Copy device blocks to host blocks."""
        here, there = self._columns(pairs)
        self.host_k[:, there] = self.k[:, here].to(self.host_k.device)
        self.host_v[:, there] = self.v[:, here].to(self.host_v.device)

    def swap_in(self, pairs: Pairs) -> None:
        """Copy host blocks to device blocks."""
        there, here = self._columns(pairs)
        self.k[:, here] = self.host_k[:, there].to(self.k.device)
        self.v[:, here] = self.host_v[:, there].to(self.v.device)

    @staticmethod
    def _columns(pairs: Pairs) -> tuple[list[int], list[int]]:
        return [old for old, _ in pairs], [new for _, new in pairs]

    def resize(self, num_blocks: int) -> None:
        """The first blocks stay, so many at most; what is added holds nothing."""
        self.k = resized(self.k, num_blocks)  # one after the other: both at once take more memory
        self.v = resized(self.v, num_blocks)


def resized(blocks: Tensor, num_blocks: int, fill: int = 0) -> Tensor:
    """A copy [L, num_blocks, ...] of blocks [L, B, ...], cut off or filled up.

    >>> resized(torch.ones(1, 2, 1), 3).flatten().tolist()
    [1.0, 1.0, 0.0]
    """
    kept = min(num_blocks, blocks.shape[1])
    new = blocks.new_full((len(blocks), num_blocks, *blocks.shape[2:]), fill)
    new[:, :kept] = blocks[:, :kept]
    return new
