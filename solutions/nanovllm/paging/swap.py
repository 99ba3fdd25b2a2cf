"""Swap: a preempted request's blocks go to host memory, and come back when it does."""

from collections.abc import Hashable
from dataclasses import dataclass

from nanovllm.paging.block_pool import BlockPool
from nanovllm.paging.block_table import BlockTable, blocks_for
from nanovllm.paging.transfers import Direction, Transfer


@dataclass(frozen=True)
class Swapped:
    """What is kept of a request in host memory."""

    host_ids: tuple[int, ...]  # its blocks there, in order
    num_tokens: int


@dataclass
class SwapStats:
    """Counted since the start."""

    blocks_out: int = 0
    blocks_in: int = 0
    times_full: int = 0  # a request found no room in host memory, and was recomputed


class SwapSpace:
    """A second pool of blocks, in host memory, for requests that wait."""

    def __init__(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.kept: dict[Hashable, Swapped] = {}  # by request
        self.stats = SwapStats()

    def swap_out(self, request: Hashable, table: BlockTable, transfers: list[Transfer]) -> bool:
        """Keep the stored tokens of a table here; False, and no change but
        `stats.times_full`, without room for all.

        Only blocks with stored tokens go, in the table's order. The table is left as it is; its
        owner frees its blocks right after this. They are copied in time: all copies are made before
        anything is written.
        """
        ### BEGIN SOLUTION
        block_ids = table.block_ids[: blocks_for(table.num_tokens, table.block_size)]
        if len(block_ids) > self.pool.num_free:
            self.stats.times_full += 1
            return False
        host_ids = self.pool.allocate(len(block_ids), request)
        for block_id, host_id in zip(block_ids, host_ids, strict=True):
            transfers.append(Transfer(Direction.OUT, block_id, host_id))
        self.kept[request] = Swapped(tuple(host_ids), table.num_tokens)
        self.stats.blocks_out += len(host_ids)
        return True
        ### END SOLUTION

    def swap_in(
        self, request: Hashable, table: BlockTable, pool: BlockPool, transfers: list[Transfer]
    ) -> None:
        """Bring back what is kept of a request, behind the tokens that its table shares already.

        Its full shared blocks (a prefix hit) stay; a partly used one is given back, for its
        content comes from here, in the table's order. If the table has as many tokens already,
        nothing is copied. In both cases the host blocks are free afterwards.
        """
        ### BEGIN SOLUTION
        kept = self.kept.pop(request)
        if kept.num_tokens > table.num_tokens:
            full = table.num_tokens // table.block_size
            pool.free(table.block_ids[full:], table)
            host_ids = kept.host_ids[full:]
            block_ids = pool.allocate(len(host_ids), table)
            table.block_ids[full:] = block_ids
            table.num_tokens = kept.num_tokens
            for host_id, block_id in zip(host_ids, block_ids, strict=True):
                transfers.append(Transfer(Direction.IN, host_id, block_id))
            self.stats.blocks_in += len(host_ids)
        self.pool.free(kept.host_ids, request)
        ### END SOLUTION

    def forget(self, request: Hashable) -> None:
        """The request will not come back: its host blocks are free."""
        kept = self.kept.pop(request, None)
        if kept is not None:
            self.pool.free(kept.host_ids, request)
