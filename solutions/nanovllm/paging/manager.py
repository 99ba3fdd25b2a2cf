"""The block manager: which request holds which blocks (see interface.py). No tensors here."""

### BEGIN SOLUTION
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from nanovllm.batching.errors import ConfigError, require
from nanovllm.batching.plan import Plan
from nanovllm.batching.request import Request
from nanovllm.paging.block_pool import BlockPool
from nanovllm.paging.block_table import BlockTable, blocks_for
from nanovllm.paging.consistency import check_consistency
from nanovllm.paging.errors import BlockOwnershipError
from nanovllm.paging.interface import Preemption
from nanovllm.paging.prefix_cache import PrefixCache, PrefixStats, SaltOf, no_salt
from nanovllm.paging.prefix_index import BlockHash, block_hash
from nanovllm.paging.sharing import fork, needs_copy, reserve
from nanovllm.paging.swap import SwapSpace
from nanovllm.paging.transfers import Direction, Transfer


@dataclass(frozen=True)
class _Hold:
    """Who called `hold`, as the pool knows it: a request that did is not its block table."""

    owner: Hashable


@dataclass
class SharingStats:
    """Counted since the start."""

    num_forked_tokens: int = 0  # shared with another sample of the same request
    num_copies: int = 0  # blocks copied on write


class BlockManager:
    """Block tables of the admitted requests, over one pool.

    preemption: what `suspend` does with a request's tokens. salt_of: requests whose salts
    differ share no cached block.
    """

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
        for name, value in (("num_blocks", num_blocks), ("block_size", block_size)):
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}.")
        if num_host_blocks < 0:
            raise ConfigError(f"num_host_blocks must be at least 0, got {num_host_blocks}.")
        if preemption not in ("recompute", "swap"):
            raise ConfigError(f'preemption must be "recompute" or "swap", got {preemption!r}.')
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.preemption = preemption
        self.prefix = PrefixCache(block_size, salt_of, hash_of)
        self.pool = BlockPool(num_blocks, self.prefix.index)
        self.swap = SwapSpace(num_host_blocks)
        self.tables: dict[Request, BlockTable] = {}
        self.held: dict[Hashable, set[int]] = {}  # by those who called `hold`
        self.transfers: list[Transfer] = []  # to be carried out before the next write
        self.sharing = SharingStats()
        self.total_tokens = num_blocks * block_size
        self.num_unused_slots = 0  # in blocks of tables, behind their stored tokens
        self._samples: dict[int, dict[Request, None]] = {}  # admitted, by request id

    @property
    def free_tokens(self) -> int:
        return self.pool.num_free * self.block_size + self.num_unused_slots

    @property
    def prefix_stats(self) -> PrefixStats | None:
        return self.prefix.stats if self.enable_prefix_caching else None

    def fits(self, num_tokens: int) -> bool:
        return blocks_for(num_tokens, self.block_size) <= self.pool.num_blocks

    def _source(self, request: Request) -> tuple[BlockTable, int]:
        """Whose blocks the request can begin with, and how many of its tokens they hold.

        Either those of another sample of its request, as far as the prompt goes (all have read
        the same); or the prefix cache's, if it is on; whichever holds more, else the
        sample's. Never all of its tokens.
        """
        hits = self.prefix.lookup(request) if self.enable_prefix_caching else []
        cached = len(hits) * self.block_size
        sibling = self._sibling(request)
        if sibling is not None:
            shared = min(self.tables[sibling].num_tokens, _prompt_len(request))
            shared = min(shared, request.num_tokens - 1)
            if shared and shared >= cached:
                return self.tables[sibling], shared
        block_ids = [entry.block_id for entry in hits]
        return BlockTable(self.block_size, block_ids, cached, hits), cached

    def _sibling(self, request: Request) -> Request | None:
        """The admitted sample of the same request that has most tokens stored, if any."""
        samples = self._samples.get(request.sequence.request_id, ())
        return max(samples, key=lambda sample: self.tables[sample].num_tokens, default=None)

    def can_admit(self, request: Request) -> bool:
        sibling = self._sibling(request)
        if sibling is not None and self.tables[sibling].num_tokens < _prompt_len(request):
            return False
        table, shared = self._source(request)
        full = shared // self.block_size
        revived = sum(self.pool.is_free(block_id) for block_id in table.block_ids[:full])
        wanted = blocks_for(request.num_tokens, self.block_size) - full
        return wanted + revived <= self.pool.num_free

    def admit(self, request: Request) -> int:
        require(request not in self.tables, f"{request} is in the store already")
        source, shared = self._source(request)
        sibling = self._sibling(request)
        if sibling is not None and source is self.tables[sibling]:
            self.sharing.num_forked_tokens += shared
        elif self.enable_prefix_caching:
            self.prefix.count(request, shared)
        table = fork(self.pool, source, shared)
        if request in self.swap.kept:
            self.swap.swap_in(request, table, self.pool, self.transfers)
        self.tables[request] = table
        self._samples.setdefault(request.sequence.request_id, {})[request] = None
        self.num_unused_slots += table.num_slots - table.num_tokens
        has_room = self._make_room(table, table.num_tokens, request.num_tokens)
        require(has_room, f"{request} was admitted without asking can_admit")
        return table.num_tokens

    def reserve(self, request: Request, num_tokens: int) -> bool:
        table, start = self.tables[request], request.num_computed_tokens
        end = start + num_tokens
        if end <= table.num_slots and not needs_copy(self.pool, table, start):
            return True  # nearly always
        return self._make_room(table, start, end)

    def _make_room(self, table: BlockTable, start: int, end: int) -> bool:
        noted, slots = len(self.transfers), table.num_slots
        has_room = reserve(self.pool, table, start, end, self.transfers)
        self.sharing.num_copies += len(self.transfers) - noted
        self.num_unused_slots += table.num_slots - slots
        return has_room

    def commit(self, plan: Plan) -> None:
        for chunk in plan.chunks:
            table = self.tables[chunk.request]
            self.num_unused_slots -= chunk.end - table.num_tokens
            table.num_tokens = chunk.end
            num_full = chunk.end // self.block_size
            if self.enable_prefix_caching and num_full > len(table.cached):
                self.prefix.register(self.pool, chunk.request, table)

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
        table = self.tables.pop(request)
        self.num_unused_slots -= table.num_slots - table.num_tokens
        table.free(self.pool)
        samples = self._samples[request.sequence.request_id]
        del samples[request]
        if not samples:
            del self._samples[request.sequence.request_id]

    def block_ids(self, request: Request) -> list[int]:
        return list(self.tables[request].block_ids)

    def owners(self) -> dict[int, list[Hashable]]:
        owners: dict[int, list[Hashable]] = {}
        for request, table in self.tables.items():
            for block_id in table.block_ids:
                owners.setdefault(block_id, []).append(request)
        for owner, block_ids in self.held.items():
            for block_id in block_ids:
                owners.setdefault(block_id, []).append(owner)
        return owners

    def hold(self, block_ids: Iterable[int], owner: Hashable) -> None:
        block_ids = list(block_ids)
        taken = set(self.held.get(owner, ()))
        if owner in self.tables:
            taken.update(self.tables[owner].block_ids)
        for block_id in block_ids:
            kept = self.pool.ref_count(block_id) or block_id in self.prefix.index
            if not kept or block_id in taken:
                raise BlockOwnershipError(
                    f"Block {block_id} cannot be held: it is free, or {owner} has it already."
                )
            taken.add(block_id)
        for block_id in block_ids:
            self.pool.share(block_id, _Hold(owner))
        if block_ids:
            self.held.setdefault(owner, set()).update(block_ids)

    def drop(self, block_ids: Iterable[int], owner: Hashable) -> None:
        block_ids = list(block_ids)
        held = self.held.get(owner, set())
        if len(set(block_ids)) < len(block_ids) or not held.issuperset(block_ids):
            raise BlockOwnershipError(
                f"{owner} cannot drop blocks {block_ids}: it holds {sorted(held)} by hold()."
            )
        self.pool.free(block_ids, _Hold(owner))
        held.difference_update(block_ids)
        if not held:
            self.held.pop(owner, None)

    def cached_blocks(self) -> list[int]:
        return [
            b for b in range(self.num_blocks) if self.pool.is_free(b) and b in self.prefix.index
        ]

    def pinned_blocks(self) -> set[int]:
        return set().union(*self.held.values())

    def move(self, old: int, new: int) -> None:
        for owner in self.pool.owners_of(old):
            if isinstance(owner, BlockTable):
                owner.replace(old, new)
        self.pool.move(old, new)
        self.prefix.index.move(old, new)
        self.transfers.append(Transfer(Direction.COPY, old, new))

    def check(self, requests: Iterable[Request] | None = None) -> None:
        self.pool.check()
        self.swap.pool.check()
        self.prefix.index.check()
        check_consistency(self, self.tables)
        for block_id, holders in self.owners().items():
            known = len(holders) == self.pool.ref_count(block_id)
            require(known, f"block {block_id} has other owners in the pool")
        require(not set(self.swap.kept) & set(self.tables), "a request is in both memories")
        if requests is not None:
            agree = set(self.tables) == set(requests)
            require(agree, "blocks are held by requests that do not run")


def _prompt_len(request: Request) -> int:
    return len(request.sequence.prompt_token_ids)


### END SOLUTION
