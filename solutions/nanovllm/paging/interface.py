"""What is asked of a block manager: the whole of it, whatever data the manager keeps (given).

`PagedStore(config, manager=...)` takes any class with this interface. Store, engines, dashboard
and later labs read nothing else of it.
"""

from collections.abc import Hashable, Iterable
from typing import Protocol

from nanovllm.batching.request import Request
from nanovllm.batching.store import SchedulingStore
from nanovllm.paging.prefix_cache import PrefixStats
from nanovllm.paging.transfers import Transfer


class BlockManagerInterface(SchedulingStore, Protocol):
    """Says which blocks hold whose tokens; keeps no tensors.

    To what lab 04's scheduler asks of a store (can_admit, admit, reserve, commit, suspend, forget,
    release) it adds: which blocks, and who else holds them.

    >>> from nanovllm.batching.simulated import SimulatedSequence
    >>> from nanovllm.paging.manager import BlockManager
    >>> manager: BlockManagerInterface = BlockManager(num_blocks=4, block_size=4)
    >>> request = Request(0, SimulatedSequence(0, 6, 9), arrival=0.0, limit=14)
    >>> manager.admit(request), manager.block_ids(request)
    (0, [0, 1])
    >>> manager.hold([0, 1], "a transfer")
    >>> manager.release(request)
    >>> manager.owners()
    {0: ['a transfer'], 1: ['a transfer']}
    >>> manager.drop([0, 1], "a transfer")
    >>> manager.owners(), manager.free_tokens
    ({}, 16)
    """

    num_blocks: int
    block_size: int
    transfers: list[Transfer]
    """Copies to be made, in order, before the next write; who makes one strikes it off."""

    @property
    def prefix_stats(self) -> PrefixStats | None:
        """Tokens looked up in the prefix cache, and found; None where there is none."""

    def block_ids(self, request: Request) -> list[int]:
        """The blocks of an admitted request, in the order of its tokens: a list of its own."""

    def owners(self) -> dict[int, list[Hashable]]:
        """Who holds each block that is held: requests, and whoever called `hold`."""

    def hold(self, block_ids: Iterable[int], owner: Hashable) -> None:
        """One more owner of blocks that are held or cached: nobody gets or writes them meanwhile.

        For a transfer, or a copy to host memory, that outlives the request. A request that would
        write into such a block writes into a copy of it.

        Raises:
            BlockOwnershipError: a block is free and its content is not kept, or the owner has it
                already; nothing has changed.
        """

    def drop(self, block_ids: Iterable[int], owner: Hashable) -> None:
        """The owner gives up blocks that it took by `hold`; who is the last sets them free.

        Raises:
            BlockOwnershipError: it does not hold one of them; nothing has changed.
        """

    def cached_blocks(self) -> list[int]:
        """Blocks that nobody holds, but that requests which begin alike would find: by number."""

    def check(self, requests: Iterable[Request] | None = None) -> None:
        """Raise InvariantError unless its own data agree.

        requests: if given, exactly these must be admitted.
        """
