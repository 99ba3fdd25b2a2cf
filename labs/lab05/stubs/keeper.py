"""What a block pool is given and what it counts (given)."""

from collections.abc import Container, Hashable
from dataclasses import dataclass
from typing import Protocol

Owner = Hashable  # of blocks: a block table, mostly


class Keeper(Container[int], Protocol):
    """Whoever knows what is in free blocks and may want it again: the prefix index (task 6)."""

    def evict(self, block_id: int) -> None:
        """The block is given to somebody else: forget what was in it."""


class KeepNothing:
    """A keeper to whom a free block is just free."""

    def __contains__(self, block_id: object) -> bool:
        return False

    def evict(self, block_id: int) -> None:
        pass


@dataclass
class PoolStats:
    """Counted since the pool was made."""

    num_allocated: int = 0  # blocks given out
    num_freed: int = 0  # blocks whose last owner left
    num_evicted: int = 0  # blocks given out although their content was kept
    num_failed: int = 0  # calls of allocate that got nothing
    peak_used: int = 0
