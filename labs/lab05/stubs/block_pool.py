"""A pool of equal blocks: who holds which, and which is given out next. No tensors here."""

from collections import OrderedDict
from collections.abc import Container, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from nanovllm.batching.errors import require
from nanovllm.paging.errors import BlockOwnershipError, OutOfBlocksError

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


class BlockPool:
    """Blocks 0 .. num_blocks - 1. Every block is free, or held by one or more owners.

    owners: the reverse map, from each held block to those who hold it; the reference count is
    their number. Free blocks stand in a queue: the next to be given out first. All is O(1) a
    block, however large the pool.
    """

    def __init__(self, num_blocks: int, keeper: Keeper | None = None) -> None:
        self.num_blocks = num_blocks
        self.keeper: Keeper = KeepNothing() if keeper is None else keeper
        self.owners: dict[int, dict[Owner, None]] = {}  # a dict of None is a set with an order
        self.free_queue: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self.stats = PoolStats()

    @classmethod
    def holding(
        cls, num_blocks: int, held: dict[Owner, Sequence[int]], keeper: Keeper | None = None
    ) -> Self:
        """A pool in which each owner holds the blocks that are listed for it.

        >>> pool = BlockPool.holding(4, {"a": [2, 0], "b": [2]})
        >>> pool.ref_count(2), list(pool.free_queue)
        (2, [1, 3])
        """
        pool = cls(num_blocks, keeper)
        for owner, block_ids in held.items():
            for block_id in block_ids:
                pool.owners.setdefault(block_id, {})[owner] = None
                pool.free_queue.pop(block_id, None)
        return pool

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds; some of them may be kept for a prefix hit."""
        return len(self.free_queue)

    @property
    def num_used(self) -> int:
        """Blocks that somebody holds."""
        return len(self.owners)

    def ref_count(self, block_id: int) -> int:
        """How many hold the block."""
        return len(self.owners.get(block_id, ()))

    def is_free(self, block_id: int) -> bool:
        """Whether nobody holds the block."""
        return block_id in self.free_queue

    def allocate(self, count: int, owner: Owner) -> list[int]:
        """Take `count` blocks from the front of the free queue for a new owner, in that order.

        All or nothing. A block whose content the keeper kept is evicted there.

        Raises:
            OutOfBlocksError: fewer are free; nothing has changed but the count of failures.

        >>> pool = BlockPool(3)
        >>> pool.allocate(2, "a"), pool.num_free
        ([0, 1], 1)
        >>> pool.allocate(2, "b")
        Traceback (most recent call last):
        nanovllm.paging.errors.OutOfBlocksError: 2 blocks were asked for, but 1 of 3 is free.
        """
        raise NotImplementedError("lab05 task 2: BlockPool.allocate")

    def share(self, block_id: int, owner: Owner) -> None:
        """One more owner of a block. A free one (a prefix hit) leaves the free queue.

        Raises:
            BlockOwnershipError: the owner holds it already, or it is free and its content is
                not kept; nothing has changed.
        """
        raise NotImplementedError("lab05 task 2: BlockPool.share")

    def free(self, block_ids: Iterable[int], owner: Owner) -> None:
        """The owner gives blocks back, in this order; a block without owners is free.

        A free block whose content is kept goes to the end of the queue, so that the one unused
        for longest is evicted first; any other goes to the front.

        Raises:
            BlockOwnershipError: the owner does not hold one of them (any more), or it is listed
                twice; nothing has changed.

        >>> pool = BlockPool(2)
        >>> pool.free(pool.allocate(1, "a"), "a")
        >>> pool.free([0], "a")
        Traceback (most recent call last):
        nanovllm.paging.errors.BlockOwnershipError: Block 0 cannot be freed: this owner does \
not hold it, or lists it twice.
        """
        raise NotImplementedError("lab05 task 2: BlockPool.free")

    def _refuse(self, count: int) -> None:
        verb = "is" if self.num_free == 1 else "are"
        raise OutOfBlocksError(
            f"{count} blocks were asked for, but {self.num_free} of {self.num_blocks} {verb} free."
        )

    def _refuse_free(self, block_id: int) -> None:
        raise BlockOwnershipError(
            f"Block {block_id} cannot be freed: this owner does not hold it, or lists it twice."
        )

    def check(self) -> None:
        """Raise InvariantError unless every block is free once or held by somebody."""
        blocks = sorted([*self.free_queue, *self.owners])
        require(blocks == list(range(self.num_blocks)), "a block is lost, or free and held")
        require(all(self.owners.values()), "a block is held by nobody")
