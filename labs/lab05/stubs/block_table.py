"""Which blocks hold a sequence's tokens, in order, and so in which slot each token is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nanovllm.paging.block_pool import BlockPool
    from nanovllm.paging.prefix_index import CachedBlock


def blocks_for(num_tokens: int, block_size: int) -> int:
    """How many blocks hold so many tokens; the last may be partly used.

    >>> [blocks_for(n, 16) for n in (0, 1, 16, 17)]
    [0, 1, 1, 2]
    """
    raise NotImplementedError("lab05 task 3: blocks_for")


@dataclass(eq=False)  # an owner of blocks: two tables are never the same
class BlockTable:
    """The blocks of one sequence: block i holds its tokens i * P .. i * P + P - 1 (P a block)."""

    block_size: int
    block_ids: list[int] = field(default_factory=list)
    num_tokens: int = 0  # stored; there may be blocks for more
    cached: list[CachedBlock] = field(default_factory=list)  # its first blocks in the prefix index

    @property
    def num_slots(self) -> int:
        """Tokens that its blocks have room for."""
        return len(self.block_ids) * self.block_size

    def slots(self, start: int, end: int) -> list[int]:
        """The slot of each token start .. end - 1: block * P + offset.

        Slots count through the whole pool: slot s is place s % P of block s // P.

        >>> BlockTable(4, block_ids=[7, 2]).slots(2, 6)
        [30, 31, 8, 9]
        """
        raise NotImplementedError("lab05 task 3: BlockTable.slots")

    def num_missing(self, end: int) -> int:
        """Blocks that are still wanted for the tokens up to `end`; 0 if there are enough.

        >>> table = BlockTable(4, block_ids=[7, 2])
        >>> table.num_missing(8), table.num_missing(9)
        (0, 1)
        """
        raise NotImplementedError("lab05 task 3: BlockTable.num_missing")

    def grow(self, pool: BlockPool, end: int) -> None:
        """Take from the pool the blocks that are missing for the tokens up to `end`.

        Raises:
            OutOfBlocksError: too few are free; the table is as it was.
        """
        raise NotImplementedError("lab05 task 3: BlockTable.grow")

    def free(self, pool: BlockPool) -> None:
        """Give all blocks back to the pool, the last first; then it is as new: `cached` is empty.

        A cached block can be hit only behind those before it. So the last is freed first, and
        is evicted before them.

        >>> from nanovllm.paging.block_pool import BlockPool
        >>> pool, table = BlockPool(3), BlockTable(4)
        >>> table.grow(pool, 5)
        >>> pool.num_free
        1
        >>> table.free(pool)
        >>> table.block_ids, pool.num_free
        ([], 3)
        """
        raise NotImplementedError("lab05 task 3: BlockTable.free")

    def replace(self, old: int, new: int) -> None:
        """Have block `new` where block `old` was."""
        self.block_ids[self.block_ids.index(old)] = new
