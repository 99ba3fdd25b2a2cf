"""Lab 05's books against simple models, under random histories (hypothesis state machines)."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nanovllm.batching.budget import FixedBudget
from nanovllm.batching.policies import make_policy
from nanovllm.batching.request import Request, Status
from nanovllm.batching.scheduler import Scheduler
from nanovllm.generation.latency import ManualClock
from nanovllm.paging.block_pool import BlockPool
from nanovllm.paging.compaction import compact, span
from nanovllm.paging.errors import BlockOwnershipError, OutOfBlocksError
from nanovllm.paging.manager import BlockManager
from nanovllm.paging.prefix_index import PrefixIndex, block_hash
from nanovllm.paging.transfers import Direction, Transfer, runs

FEW = settings(
    max_examples=40,
    stateful_step_count=40,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


class PoolMachine(RuleBasedStateMachine):
    """A BlockPool against one set of owners a block."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(9)
        self.owners: list[set[str]] = [set() for _ in range(9)]

    @rule(count=st.integers(0, 5), owner=st.sampled_from("abc"))
    def allocate(self, count: int, owner: str) -> None:
        free = [b for b, owners in enumerate(self.owners) if not owners]
        if count > len(free):
            with pytest.raises(OutOfBlocksError):
                self.pool.allocate(count, owner)
            return
        got = self.pool.allocate(count, owner)
        assert len(set(got)) == count and set(got) <= set(free)
        for block in got:
            self.owners[block] = {owner}

    @rule(block=st.integers(0, 8), owner=st.sampled_from("abc"))
    def share(self, block: int, owner: str) -> None:
        if not self.owners[block] or owner in self.owners[block]:
            with pytest.raises(BlockOwnershipError):
                self.pool.share(block, owner)
        else:
            self.pool.share(block, owner)
            self.owners[block].add(owner)

    @rule(blocks=st.lists(st.integers(0, 8), max_size=4), owner=st.sampled_from("abc"))
    def free(self, blocks: list[int], owner: str) -> None:
        bad = len(set(blocks)) < len(blocks) or any(owner not in self.owners[b] for b in blocks)
        if bad:
            with pytest.raises(BlockOwnershipError):
                self.pool.free(blocks, owner)
            return
        self.pool.free(blocks, owner)
        for block in blocks:
            self.owners[block].remove(owner)

    @invariant()
    def agrees(self) -> None:
        self.pool.check()
        assert [set(self.pool.owners.get(b, ())) for b in range(9)] == self.owners


class IndexMachine(RuleBasedStateMachine):
    """A PrefixIndex whose keys collide all the time, against a dict of whole pasts."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex()
        self.pasts: dict[int, tuple] = {}  # block -> the tokens of all blocks up to it

    def key(self, past: tuple) -> bytes:
        return bytes([sum(map(sum, past)) % 5])  # five keys for everything

    @rule(block=st.integers(0, 11), tokens=st.tuples(st.integers(0, 2), st.integers(0, 2)),
          data=st.data())  # fmt: skip
    def insert(self, block: int, tokens: tuple, data: st.DataObject) -> None:
        if block in self.pasts:
            return
        parents = [None, *self.index.by_block.values()]
        parent = data.draw(st.sampled_from(parents))
        past = (*(self.pasts[parent.block_id] if parent else ()), tokens)
        entry = self.index.insert(self.key(past), parent, tokens, "", block)
        same = [b for b, other in self.pasts.items() if other == past]
        if same:
            assert entry is not None and entry.block_id == same[0]
        elif any(self.key(other) == self.key(past) for other in self.pasts.values()):
            assert entry is None
        else:
            assert entry is not None and entry.block_id == block
            self.pasts[block] = past

    @precondition(lambda self: self.pasts)
    @rule(data=st.data())
    def evict_a_leaf(self, data: st.DataObject) -> None:
        parents = {entry.parent for entry in self.index.by_block.values()}
        leaves = [b for b, entry in self.index.by_block.items() if entry not in parents]
        block = data.draw(st.sampled_from(leaves))
        self.index.evict(block)
        del self.pasts[block]

    @invariant()
    def finds_exactly_what_is_there(self) -> None:
        self.index.check()
        assert set(self.index.by_block) == set(self.pasts)
        for block, past in self.pasts.items():
            parent = None
            for depth, tokens in enumerate(past):
                found = self.index.find(self.key(past[: depth + 1]), parent, tokens, "")
                assert found is not None
                parent = found
            assert parent is not None and parent.block_id == block


class Tokens:
    """A sequence whose tokens are drawn from two, so that prefixes meet often."""

    def __init__(self, request_id: int, prompt: list[int], goal: int, index: int) -> None:
        self.request_id, self.index, self.goal = request_id, index, goal
        self.prompt_token_ids, self.output_token_ids = prompt, []

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_token_ids) + len(self.output_token_ids)


class Memory:
    """What the cache would hold: the past of the token in each slot. Copies and writes move it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.slots: dict[tuple[str, int], tuple] = {}

    def carry_out(self, transfers: list[Transfer]) -> None:
        for run in runs(transfers):
            read = {}
            for move in run:
                old = "host" if move.direction is Direction.IN else "device"
                new = "host" if move.direction is Direction.OUT else "device"
                for i in range(self.size):
                    content = self.slots.get((old, move.old * self.size + i), ())
                    read[new, move.new * self.size + i] = content
            self.slots.update(read)
        transfers.clear()


class EngineMachine(RuleBasedStateMachine):
    """Lab 04's scheduler over a BlockManager, with a memory that knows what every slot holds."""

    @initialize(
        size=st.sampled_from([1, 2, 4]),
        caching=st.booleans(),
        preemption=st.sampled_from(["recompute", "swap"]),
        host=st.sampled_from([0, 3, 12]),
        policy=st.sampled_from(["fcfs", "sjf", "round-robin"]),
        chunk=st.sampled_from([None, 3]),
    )
    def start(self, size, caching, preemption, host, policy, chunk) -> None:
        self.manager = BlockManager(
            -(-24 // size), size, enable_prefix_caching=caching, preemption=preemption,
            num_host_blocks=host,
        )  # fmt: skip
        self.scheduler = Scheduler(
            self.manager, make_policy(policy), FixedBudget(9), max_num_seqs=5, max_chunk=chunk,
            clock=ManualClock(),
        )  # fmt: skip
        self.memory = Memory(size)
        self.live: list[Request] = []
        self.number = 0

    @rule(prompt=st.lists(st.integers(0, 1), min_size=1, max_size=14), goal=st.integers(1, 8),
          samples=st.sampled_from([1, 1, 3]))  # fmt: skip
    def arrive(self, prompt: list[int], goal: int, samples: int) -> None:
        for index in range(samples):
            sequence = Tokens(self.number, prompt, goal, index)
            limit = len(prompt) + goal - 1
            request = Request(1000 * self.number + index, sequence, self.scheduler.clock(), limit)
            self.live.append(request)
            self.scheduler.add(request)
        self.number += 1

    @rule()
    def step(self) -> None:
        plan = self.scheduler.schedule()
        if plan.chunks:
            self.memory.carry_out(self.manager.transfers)
        for chunk in plan.chunks:
            table = self.manager.tables[chunk.request]
            slots = table.slots(chunk.start, chunk.end)
            for position, slot in zip(range(chunk.start, chunk.end), slots, strict=True):
                past = tuple(chunk.request.token_ids(0, position + 1))
                assert self.manager.pool.ref_count(slot // self.manager.block_size) == 1
                self.memory.slots["device", slot] = past
        for chunk in plan.chunks:  # what attention reads is each token's own past
            table = self.manager.tables[chunk.request]
            read = [self.memory.slots.get(("device", s)) for s in table.slots(0, chunk.end)]
            assert read == [tuple(chunk.request.token_ids(0, i + 1)) for i in range(chunk.end)]
        self.manager.commit(plan)
        self.scheduler.update(plan)
        for chunk in plan.chunks:
            if chunk.completes:
                sequence = chunk.request.sequence
                sequence.output_token_ids.append(
                    (len(sequence.output_token_ids) + sequence.index) % 2
                )
                if len(sequence.output_token_ids) == sequence.goal:
                    self.end(chunk.request, Status.FINISHED)

    def end(self, request: Request, status: Status) -> None:
        self.scheduler.end(request, status)
        self.live.remove(request)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(self.live)), Status.FAILED)

    @rule(pinned=st.booleans())
    def compact(self, pinned: bool) -> None:
        before = span(self.manager)
        compact(self.manager, list(self.scheduler.running) if pinned else ())
        assert span(self.manager) <= before

    @invariant()
    def books_agree(self) -> None:
        if hasattr(self, "manager"):
            self.scheduler.check()

    def teardown(self) -> None:
        if not hasattr(self, "manager"):
            return
        steps = 0
        while self.live:
            self.step()
            steps += 1
            assert steps < 2000, f"nobody gets on: {self.live}"
        self.scheduler.check()
        assert self.manager.pool.num_free == self.manager.pool.num_blocks
        assert self.manager.swap.pool.num_free == self.manager.swap.pool.num_blocks
        assert not self.manager.prefix._contents and not self.manager.siblings.tables


TestPool = PoolMachine.TestCase
TestPool.settings = FEW
TestIndex = IndexMachine.TestCase
TestIndex.settings = FEW
TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(FEW, max_examples=60)


def test_transfers_run_as_if_one_by_one() -> None:
    moves = [Transfer(Direction.COPY, *pair) for pair in ((1, 2), (2, 3), (4, 2), (5, 1), (5, 6))]
    one_by_one, in_runs = list(range(8)), list(range(8))
    for move in moves:
        one_by_one[move.new] = one_by_one[move.old]
    for run in runs(moves):
        values = [in_runs[move.old] for move in run]
        for move, value in zip(run, values, strict=True):
            in_runs[move.new] = value
    assert in_runs == one_by_one
    assert [len(run) for run in runs(moves)] == [1, 1, 3]


def test_keys_are_the_same_in_every_process() -> None:
    key = block_hash(block_hash(b"", (1, 2), "salt"), (3, 4), "salt")
    assert key.hex()[:16] == "b2f079aab9fec2a5"
