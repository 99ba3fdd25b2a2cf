"""A second scheduler, block manager and store, written against the public interfaces alone.

Other data than the reference's: heaps, sets and plain dictionaries, no block tables, no pool, no
prefix cache, a growing tensor for each request. Tests put them under every engine.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable

import torch

from nanovllm.batching.budget import Budget, FixedBudget
from nanovllm.batching.errors import ConfigError, RequestTooLargeError, require
from nanovllm.batching.plan import Chunk, Plan
from nanovllm.batching.policies import FirstComeFirstServed, Policy
from nanovllm.batching.request import Request, Status
from nanovllm.batching.store import SchedulingStore
from nanovllm.model.attention import attention
from nanovllm.model.config import ModelConfig
from nanovllm.paging.errors import BlockOwnershipError
from nanovllm.paging.transfers import Direction, Transfer


class HeapScheduler:
    """A heap made anew for each step, and a list that runs: no queue is kept in order."""

    def __init__(
        self,
        store: SchedulingStore,
        policy: Policy | None = None,
        budget: Budget | None = None,
        *,
        max_num_seqs: int = 16,
        max_chunk: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if max_num_seqs < 1 or (max_chunk is not None and max_chunk < 1):
            raise ConfigError("At least one request runs, and a chunk has at least one token.")
        self.store, self.clock = store, clock
        self.policy, self.budget = policy or FirstComeFirstServed(), budget or FixedBudget()
        self._seats, self._longest = max_num_seqs, max_chunk
        self._outside: set[Request] = set()
        self._batch: list[Request] = []

    @property
    def running(self) -> Collection[Request]:
        return tuple(self._batch)

    @property
    def waiting(self) -> Collection[Request]:
        return frozenset(self._outside)

    @property
    def has_work(self) -> bool:
        return bool(self._outside or self._batch)

    def _ranked(self) -> list[tuple[tuple[float, float, int], Request]]:
        now = self.clock()
        return [(self.policy.rank(request, now), request) for request in self._outside]

    def queue(self) -> list[Request]:
        heap = self._ranked()
        heapq.heapify(heap)
        return [heapq.heappop(heap)[1] for _ in range(len(heap))]

    def refuse_unfit(self, request: Request) -> None:
        if not self.store.fits(request.limit):
            raise RequestTooLargeError(f"There is no room for {request.limit} tokens.")

    def add(self, request: Request) -> None:
        self.refuse_unfit(request)
        self._outside.add(request)

    def _put_back(self, request: Request) -> None:
        self._batch.remove(request)
        self.store.suspend(request)
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        request.move_to(Status.PREEMPTED, self.clock())
        self._outside.add(request)

    def schedule(self) -> Plan:
        preempted: list[Request] = []
        if self._outside:
            first = min(self._ranked())[1]
            over = self.policy.displaced(first, tuple(self._batch), self.clock())
            if over and (len(self._batch) == self._seats or not self.store.can_admit(first)):
                self._put_back(over)
                preempted.append(over)
        handed_on = len(preempted)
        decodes = sum(request.remaining == 1 for request in self._batch)
        left = min(self.budget.highest, self.budget.limit, self.store.free_tokens)
        left = total = max(left, decodes, bool(self._batch))
        lengths: dict[Request, int] = {}
        for request in sorted(self._batch, key=lambda r: r.remaining > 1):
            length = min(request.remaining, left, self._longest or left)
            while length and request in self._batch and not self.store.reserve(request, length):
                victim = self.policy.victim(self._batch, self.clock())
                left += lengths.pop(victim, 0)
                self._put_back(victim)
                preempted.append(victim)
            if length and request in self._batch:
                lengths[request] = length
                left -= length
        admitted: list[Request] = []
        heap = self._ranked() if len(preempted) == handed_on else []
        heapq.heapify(heap)
        while heap and left and len(self._batch) < self._seats:
            request = heapq.heappop(heap)[1]
            if not self.store.can_admit(request):
                break
            self._outside.remove(request)
            request.num_computed_tokens = self.store.admit(request)
            request.move_to(Status.SCHEDULED, self.clock())
            request.turn_start = request.num_output_tokens
            self._batch.append(request)
            admitted.append(request)
            length = min(request.remaining, left, self._longest or left)
            if not self.store.reserve(request, length):
                break
            lengths[request] = length
            left -= length
        chunks = tuple(self._chunk(request, length) for request, length in lengths.items())
        return Plan(chunks, tuple(admitted), tuple(preempted), total)

    def _chunk(self, request: Request, length: int) -> Chunk:
        return Chunk(request, request.num_computed_tokens, length, request.num_tokens)

    def update(self, plan: Plan) -> None:
        for chunk in plan.chunks:
            chunk.request.num_computed_tokens = chunk.end
            if chunk.request.status is Status.SCHEDULED:
                chunk.request.move_to(Status.RUNNING, self.clock())

    def observe(self, seconds: float) -> None:
        self.budget.observe(seconds, self.store.free_tokens / self.store.total_tokens)

    def end(self, request: Request, status: Status) -> None:
        if request in self._batch:
            self._batch.remove(request)
            self.store.release(request)
        else:
            self._outside.remove(request)
            self.store.forget(request)
        request.move_to(status, self.clock())

    def check(self) -> None:
        require(len(self._batch) <= self._seats, "too many run")
        require(not set(self._batch) & self._outside, "somebody waits and runs")


class SetManager:
    """Blocks in sets and dictionaries: no pool, no tables, nothing shared but by `hold`."""

    prefix_stats = None

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.total_tokens = num_blocks * block_size
        self.transfers: list[Transfer] = []
        self._free = set(range(num_blocks))
        self._blocks: dict[Request, dict[int, int]] = {}  # place in the request, block
        self._stored: Counter[Request] = Counter()
        self._holds: set[tuple[int, Hashable]] = set()

    @property
    def free_tokens(self) -> int:
        taken = sum(len(blocks) for blocks in self._blocks.values()) * self.block_size
        unused = taken - sum(self._stored[request] for request in self._blocks)
        return len(self._free) * self.block_size + unused

    def fits(self, num_tokens: int) -> bool:
        return num_tokens <= self.total_tokens

    def can_admit(self, request: Request) -> bool:
        return -(-request.num_tokens // self.block_size) <= len(self._free)

    def admit(self, request: Request) -> int:
        self._blocks[request] = {}
        require(self._grow(request, 0, request.num_tokens), "admitted without room")
        return 0

    def reserve(self, request: Request, num_tokens: int) -> bool:
        start = request.num_computed_tokens
        return self._grow(request, start, start + num_tokens)

    def _grow(self, request: Request, start: int, end: int) -> bool:
        mine, size = self._blocks[request], self.block_size
        missing = [place for place in range(-(-end // size)) if place not in mine]
        held = {block for block, _ in self._holds}
        shared = [p for p in range(start // size, -(-end // size)) if mine.get(p) in held]
        if len(missing) + len(shared) > len(self._free):
            return False
        for place in missing:
            mine[place] = self._free.pop()
        for place in shared:
            old, mine[place] = mine[place], self._free.pop()
            self.transfers.append(Transfer(Direction.COPY, old, mine[place]))
        return True

    def commit(self, plan: Plan) -> None:
        for chunk in plan.chunks:
            self._stored[chunk.request] = chunk.end

    def release(self, request: Request) -> None:
        held = {block for block, _ in self._holds}
        self._free |= set(self._blocks.pop(request).values()) - held
        del self._stored[request]

    def suspend(self, request: Request) -> None:
        self.release(request)

    def forget(self, request: Request) -> None:
        pass

    def block_ids(self, request: Request) -> list[int]:
        return [block for _, block in sorted(self._blocks[request].items())]

    def owners(self) -> dict[int, list[Hashable]]:
        pairs = [(b, r) for r, blocks in self._blocks.items() for b in blocks.values()]
        owners: dict[int, list[Hashable]] = {}
        for block, owner in [*pairs, *self._holds]:
            owners.setdefault(block, []).append(owner)
        return owners

    def hold(self, block_ids: Iterable[int], owner: Hashable) -> None:
        block_ids, owners = list(block_ids), self.owners()
        well = len(set(block_ids)) == len(block_ids)
        if not well or any(owner in owners.get(b, [owner]) for b in block_ids):
            raise BlockOwnershipError(f"{owner} cannot hold {block_ids}.")
        self._holds |= {(block, owner) for block in block_ids}

    def drop(self, block_ids: Iterable[int], owner: Hashable) -> None:
        block_ids = list(block_ids)
        gone = {(block, owner) for block in block_ids}
        if len(gone) < len(block_ids) or not gone <= self._holds:
            raise BlockOwnershipError(f"{owner} does not hold {block_ids}.")
        self._holds -= gone
        owned = self.owners()
        self._free |= {block for block in block_ids if block not in owned}

    def cached_blocks(self) -> list[int]:
        return []

    def check(self, requests: Iterable[Request] | None = None) -> None:
        owned = set(self.owners())
        require(not owned & self._free, "a block is free and held")
        require(owned | self._free == set(range(self.num_blocks)), "a block is lost")
        if requests is not None:
            require(set(requests) == set(self._blocks), "others are held than run")


class GrowingStore:
    """K and V of each request in tensors of their own, which grow: no blocks, no slots."""

    block_size = 1

    def __init__(self, config: ModelConfig, total_tokens: int) -> None:
        self.config = config
        self.total_tokens = self.num_blocks = total_tokens
        self._k: dict[Request, list[torch.Tensor]] = {}
        self._v: dict[Request, list[torch.Tensor]] = {}

    @property
    def free_tokens(self) -> int:
        return self.total_tokens - sum(request.num_computed_tokens for request in self._k)

    def fits(self, num_tokens: int) -> bool:
        return num_tokens <= self.total_tokens

    def block_ids(self, request: Request) -> list[int]:
        return list(range(request.num_computed_tokens)) if request in self._k else []

    def can_admit(self, request: Request) -> bool:
        return True

    def admit(self, request: Request) -> int:
        empty = torch.zeros(0, self.config.num_kv_heads, self.config.head_dim)
        self._k[request] = [empty] * self.config.num_layers
        self._v[request] = [empty] * self.config.num_layers
        return 0

    def reserve(self, request: Request, num_tokens: int) -> bool:
        return True

    def bind(self, plan: Plan):
        def attend(layer, q, k, v):
            lengths = [chunk.length for chunk in plan.chunks]
            parts = zip(plan.chunks, q.split(lengths), k.split(lengths), v.split(lengths),
                        strict=True)  # fmt: skip
            out = []
            for chunk, q_part, k_part, v_part in parts:
                for kept, new in ((self._k, k_part), (self._v, v_part)):
                    old = kept[chunk.request][layer][: chunk.start]
                    kept[chunk.request][layer] = torch.cat([old, new])
                keys, values = self._k[chunk.request][layer], self._v[chunk.request][layer]
                out.append(attention(q_part, keys, values, window=self.config.window(layer)))
            return torch.cat(out)

        return attend

    def commit(self, plan: Plan) -> None:
        pass

    def release(self, request: Request) -> None:
        del self._k[request], self._v[request]

    def suspend(self, request: Request) -> None:
        self.release(request)

    def forget(self, request: Request) -> None:
        pass

    def check(self, requests: Iterable[Request]) -> None:
        require(set(requests) == set(self._k) == set(self._v), "others are held than run")
