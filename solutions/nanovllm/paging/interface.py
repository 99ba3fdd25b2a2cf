"""What is asked of a block pool and of a block manager, whatever data they keep (given).

`PagedStore(config, manager=...)` takes any class with this interface. Store, engines, dashboard
and later labs read nothing else of it.
"""

from collections.abc import Hashable, Iterable
from typing import Literal, Protocol

from nanovllm.batching.request import Request
from nanovllm.batching.store import SchedulingStore
from nanovllm.paging.keeper import Owner, PoolStats
from nanovllm.paging.prefix_cache import PrefixStats
from nanovllm.paging.transfers import Transfer

Preemption = Literal["recompute", "swap"]


class BlockPoolInterface(Protocol):
    """Blocks 0 .. num_blocks - 1: each is free, or held by one owner or more. No tensors.

    Made by `BlockPool(num_blocks, keeper=None)`. `block_id in keeper` says that the content of a
    block is kept: it may be wanted again when the block is free. All is O(1) a block.

    >>> from nanovllm.paging.block_pool import BlockPool
    >>> pool: BlockPoolInterface = BlockPool(3)
    >>> [block] = pool.allocate(1, "a")
    >>> pool.share(block, "b")
    >>> pool.free([block], "a")
    >>> pool.owners_of(block), pool.num_free
    (['b'], 2)
    """

    num_blocks: int
    stats: PoolStats

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, kept ones included."""
        ...

    @property
    def num_used(self) -> int:
        """Blocks that somebody holds."""
        ...

    def ref_count(self, block_id: int) -> int:
        """How many hold the block."""
        ...

    def owners_of(self, block_id: int) -> list[Owner]:
        """Those who hold the block, in any order."""
        ...

    def is_free(self, block_id: int) -> bool:
        """Whether nobody holds the block."""
        ...

    def allocate(self, count: int, owner: Owner) -> list[int]:
        """Give `count` free blocks to a first owner.

        Free blocks whose content is not kept go first, in any order. Of kept ones, the one that
        was freed first goes first; each that is given out is evicted from the keeper.

        Raises:
            OutOfBlocksError: fewer are free; nothing has changed but `stats.num_failed`.
        """
        ...

    def share(self, block_id: int, owner: Owner) -> None:
        """One more owner of a block that is held, or free and kept; a free one is held then.

        Raises:
            BlockOwnershipError: the owner holds it already, or it is free and not kept; nothing
                has changed.
        """

    def free(self, block_ids: Iterable[int], owner: Owner) -> None:
        """The owner gives blocks back, in this order; a block that lost its last owner is free.

        Raises:
            BlockOwnershipError: the owner does not hold one of them, or one is listed twice;
                nothing has changed.
        """

    def move(self, old: int, new: int) -> None:
        """All owners of the held block `old` hold the free block `new` in its place.

        `new` was free and not kept. The keeper is told before the pool: for it, what was in `old`
        is in `new` by now.

        Raises:
            BlockOwnershipError: `old` is free, or `new` is held; nothing has changed.
        """

    def check(self) -> None:
        """Raise InvariantError unless every block is free, or held, and none is lost."""


class BlockManagerInterface(SchedulingStore, Protocol):
    """Says which blocks hold whose tokens; keeps no tensors.

    To what lab 04's scheduler asks of a store (can_admit, admit, reserve, commit, suspend, forget,
    release) it adds: which blocks, and who else holds them.

    Made by `BlockManager(num_blocks, block_size=16, *, enable_prefix_caching=True,
    preemption="recompute", num_host_blocks=0, salt_of=no_salt, hash_of=block_hash)`. It raises
    ConfigError for num_blocks or block_size below 1, num_host_blocks below 0, another preemption.

    >>> from nanovllm.batching.simulated import SimulatedSequence
    >>> from nanovllm.paging.manager import BlockManager
    >>> manager: BlockManagerInterface = BlockManager(num_blocks=4, block_size=4)
    >>> request = Request(0, SimulatedSequence(0, 6, 9), arrival=0.0, limit=14)
    >>> manager.can_admit(request), manager.admit(request)
    (True, 0)
    >>> blocks = manager.block_ids(request)
    >>> manager.hold(blocks[:1], "a transfer")
    >>> manager.release(request)
    >>> list(manager.owners().values())
    [['a transfer']]
    >>> manager.drop(blocks[:1], "a transfer")
    >>> manager.owners(), manager.free_tokens
    ({}, 16)
    """

    num_blocks: int
    block_size: int
    transfers: list[Transfer]
    """Copies to be made, in order, before the next write; whoever makes one removes it."""

    @property
    def prefix_stats(self) -> PrefixStats | None:
        """Tokens looked up in the prefix cache, and found; None where there is none."""
        ...

    def block_ids(self, request: Request) -> list[int]:
        """The blocks of an admitted request, in the order of its tokens: a list of its own."""
        ...

    def owners(self) -> dict[int, list[Hashable]]:
        """Who holds each block that is held: requests, and whoever called `hold`."""
        ...

    def hold(self, block_ids: Iterable[int], owner: Hashable) -> None:
        """One more owner of blocks that are held or cached: nobody gets or writes them meanwhile.

        For a transfer, or a copy to host memory, that outlives the request. A request that would
        write into such a block writes into a copy of it. block_ids: in the order of the tokens.

        Raises:
            BlockOwnershipError: a block is free and its content is not kept, or the owner has it
                already; nothing has changed.
        """

    def drop(self, block_ids: Iterable[int], owner: Hashable) -> None:
        """The owner gives up blocks that it took by `hold`; who is the last sets them free.

        Those taken last are freed first, in whatever order they are listed here.

        Raises:
            BlockOwnershipError: it does not hold one of them; nothing has changed.
        """

    def cached_blocks(self) -> list[int]:
        """Blocks that nobody holds, but that requests which begin alike would find: by number."""
        ...

    def check(self, requests: Iterable[Request] | None = None) -> None:
        """Raise InvariantError unless its own data agree.

        requests: if given, exactly these must be admitted.
        """


class TrimmingManager(BlockManagerInterface, Protocol):
    """A manager that takes back what was reserved and not used: guesses (lab 08) ask for it."""

    def trim(self, request: Request) -> None:
        """Give back the blocks behind the one of the request's last stored token."""


class MovingManager(BlockManagerInterface, Protocol):
    """A manager whose blocks can be moved: what compaction (task 8) asks besides."""

    def pinned_blocks(self) -> set[int]:
        """Blocks that somebody took by `hold`: whoever did knows their numbers, so they stay."""
        ...

    def move(self, old: int, new: int) -> None:
        """Block `new`, which is free and not cached, takes the place of the held block `old`.

        All tables name the new one, a cached block is found there, and `transfers` has the copy.
        The prefix index is told before the pool.
        """
