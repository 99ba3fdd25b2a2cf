"""The block manager: which request holds which blocks (see interface.py). No tensors here."""

### BEGIN SOLUTION
from collections.abc import Hashable, Iterable
from typing import cast

from nanovllm.batching.errors import require
from nanovllm.batching.plan import Plan
from nanovllm.batching.request import Request
from nanovllm.paging.block_pool import BlockPool
from nanovllm.paging.block_table import BlockTable, blocks_for
from nanovllm.paging.consistency import check_consistency, check_settings
from nanovllm.paging.holds import Holds
from nanovllm.paging.interface import Preemption
from nanovllm.paging.prefix_cache import PrefixCache, PrefixStats, SaltOf, no_salt
from nanovllm.paging.prefix_index import BlockHash, block_hash
from nanovllm.paging.sharing import Siblings, fork, needs_copy, reserve
from nanovllm.paging.swap import SwapSpace
from nanovllm.paging.transfers import Direction, Transfer


class BlockManager:
    """Block tables of the admitted requests, over one pool."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 16,
        *,
        enable_prefix_caching: bool = True,
        preemption: Preemption = "recompute",
        num_host_blocks: int = 0,
        salt_of: SaltOf = no_salt,
        hash_of: BlockHash = block_hash,
    ) -> None:
        check_settings(num_blocks, block_size, num_host_blocks, preemption)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.total_tokens = num_blocks * block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.preemption = preemption
        self.prefix = PrefixCache(block_size, salt_of, hash_of)
        self.pool = BlockPool(num_blocks, self.prefix.index)
        self.swap = SwapSpace(num_host_blocks)
        self.holds = Holds(self.pool, self.prefix.index)
        self.tables: dict[Request, BlockTable] = {}
        self.siblings = Siblings()
        self.transfers: list[Transfer] = []  # to be carried out before the next write

    @property
    def free_tokens(self) -> int:
        unused = sum(table.num_slots - table.num_tokens for table in self.tables.values())
        return self.pool.num_free * self.block_size + unused

    @property
    def prefix_stats(self) -> PrefixStats | None:
        return self.prefix.stats if self.enable_prefix_caching else None

    def fits(self, num_tokens: int) -> bool:
        return blocks_for(num_tokens, self.block_size) <= self.num_blocks

    def _source(self, request: Request) -> tuple[BlockTable, int]:
        """The table whose blocks the request can begin with, and how many of its tokens."""
        hits = self.prefix.lookup(request) if self.enable_prefix_caching else []
        cached = len(hits) * self.block_size
        sibling = self.siblings.furthest(request)
        if sibling is not None:
            common = min(sibling.num_tokens, len(request.sequence.prompt_token_ids))
            shared = min(common, request.num_tokens - 1)
            if shared >= cached:
                return sibling, shared
        block_ids = [entry.block_id for entry in hits]
        return BlockTable(self.block_size, block_ids, cached, hits), cached

    def can_admit(self, request: Request) -> bool:
        sibling = self.siblings.furthest(request)
        if sibling is not None and sibling.num_tokens < len(request.sequence.prompt_token_ids):
            return False
        source, shared = self._source(request)
        full = shared // self.block_size
        revived = sum(self.pool.is_free(block_id) for block_id in source.block_ids[:full])
        wanted = blocks_for(request.num_tokens, self.block_size) - full
        return wanted + revived <= self.pool.num_free

    def admit(self, request: Request) -> int:
        source, shared = self._source(request)
        if self.enable_prefix_caching and source is not self.siblings.furthest(request):
            self.prefix.count(request, shared)
        table = fork(self.pool, source, shared)
        if request in self.swap.kept:
            self.swap.swap_in(request, table, self.pool, self.transfers)
        self.tables[request] = table
        self.siblings.add(request, table)
        start, end = table.num_tokens, request.num_tokens
        has_room = reserve(self.pool, table, start, end, self.transfers)
        require(has_room, f"{request} was admitted without asking can_admit")
        return table.num_tokens

    def reserve(self, request: Request, num_tokens: int) -> bool:
        table, start = self.tables[request], request.num_computed_tokens
        end = start + num_tokens
        if end <= table.num_slots and not needs_copy(self.pool, table, start):
            return True  # nearly always
        return reserve(self.pool, table, start, end, self.transfers)

    def commit(self, plan: Plan) -> None:
        for chunk in plan.chunks:
            table = self.tables[chunk.request]
            table.num_tokens = chunk.end
            num_full = chunk.end // self.block_size
            if self.enable_prefix_caching and num_full > len(table.cached):
                self.prefix.register(self.pool, chunk.request, table)

    def trim(self, request: Request) -> None:
        table = self.tables[request]
        stored = blocks_for(table.num_tokens, self.block_size)
        self.pool.free(table.block_ids[stored:], table)
        del table.block_ids[stored:]

    def suspend(self, request: Request) -> None:
        if self.preemption == "swap":
            self.swap.swap_out(request, self.tables[request], self.transfers)
        self._let_go(request)

    def release(self, request: Request) -> None:
        self._let_go(request)
        self.prefix.forget(request)

    def forget(self, request: Request) -> None:
        self.swap.forget(request)
        self.prefix.forget(request)

    def _let_go(self, request: Request) -> None:
        self.siblings.remove(request)
        self.tables.pop(request).free(self.pool)

    def block_ids(self, request: Request) -> list[int]:
        return list(self.tables[request].block_ids)

    def owners(self) -> dict[int, list[Hashable]]:
        return self.holds.owners(self.tables)

    def hold(self, block_ids: Iterable[int], owner: Hashable) -> None:
        own = self.block_ids(cast(Request, owner)) if owner in self.tables else ()
        self.holds.hold(block_ids, owner, own)

    def drop(self, block_ids: Iterable[int], owner: Hashable) -> None:
        self.holds.drop(block_ids, owner)

    def cached_blocks(self) -> list[int]:
        index = self.prefix.index
        return [b for b in range(self.num_blocks) if b in index and self.pool.is_free(b)]

    def pinned_blocks(self) -> set[int]:
        return self.holds.pinned

    def move(self, old: int, new: int) -> None:
        for owner in self.pool.owners_of(old):
            if isinstance(owner, BlockTable):
                owner.replace(old, new)
        self.prefix.index.move(old, new)
        self.pool.move(old, new)
        self.transfers.append(Transfer(Direction.COPY, old, new))

    def check(self, requests: Iterable[Request] | None = None) -> None:
        for part in (self.pool, self.swap.pool, self.prefix.index):
            part.check()
        check_consistency(self, self.tables, requests)
        for block_id, holders in self.owners().items():
            known = len(holders) == self.pool.ref_count(block_id)
            require(known, f"block {block_id} has other owners in the pool")


### END SOLUTION
