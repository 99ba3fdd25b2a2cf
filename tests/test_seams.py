"""The seams of the engine: parts of another make run under every engine, with the same texts."""

from __future__ import annotations

import random
import re
import threading
from functools import partial

import pytest
import torch

from grader.course.paths import ROOT
from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.events import Aborted, Failed, Preempted
from nanovllm.batching.interface import SchedulerInterface
from nanovllm.batching.plan import Chunk, Plan
from nanovllm.batching.request import Request
from nanovllm.batching.scheduler import Scheduler
from nanovllm.batching.simulated import SimulatedSequence
from nanovllm.batching.simulator import StepCost, simulate
from nanovllm.batching.store import KVStore
from nanovllm.batching.traces import Arrival
from nanovllm.fast.engine import FastEngine
from nanovllm.generation.events import Finished
from nanovllm.generation.latency import ManualClock
from nanovllm.generation.params import SamplingParams
from nanovllm.gpu.decoder import FusedDecoder
from nanovllm.gpu.engine import GpuEngine
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model
from nanovllm.paging.compaction import compact
from nanovllm.paging.errors import BlockOwnershipError
from nanovllm.paging.interface import BlockManagerInterface
from nanovllm.paging.manager import BlockManager
from nanovllm.paging.store import PagedStore
from nanovllm.serving.snapshot import engine_state
from tests.other_parts import GrowingStore, HeapScheduler, SetManager
from tests.test_gpu_engine import in_torch, uncaptured

BLOCK = 16  # the compiled step's
CONFIG = ModelConfig("qwen3", 61, 32, 2, 4, 2, 8, 48, 160, qk_norm=True, eos_token_ids=(2,))
KINDS = ["plain", "compiled", "gpu"]
MANAGERS = {"lab 05's": BlockManager, "sets": SetManager}
SCHEDULERS = {"lab 04's": Scheduler, "heap": HeapScheduler}


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    """Random weights so far apart that greedy text varies, and depends on what was read."""
    model = dummy_model(CONFIG, 3)
    generator = torch.Generator().manual_seed(3)
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.data.normal_(std=0.4, generator=generator)
    return model


@pytest.fixture
def make(model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch):
    """An engine of a kind, with a scheduler and a manager of any make."""
    monkeypatch.setattr(FusedDecoder, "forward", in_torch)
    config = EngineConfig(max_num_seqs=4, max_num_batched_tokens=40, max_chunk=17)

    def engine(kind: str, scheduler=Scheduler, manager: BlockManagerInterface | None = None):
        manager = manager or BlockManager(40, BLOCK)
        options = {"make_scheduler": scheduler, "clock": ManualClock()}
        if kind == "compiled":
            fast = FastEngine(model, config, num_blocks=0, manager=manager, **options)
            assert fast.wait()
            return fast
        store = PagedStore(model.config, manager=manager)
        if kind == "gpu":
            return GpuEngine(model, config, store=store, capture=uncaptured, **options)
        return Engine(model, config, store=store, **options)

    return engine


def prompts_of(count: int = 7) -> list[list[int]]:
    rng = random.Random(7)
    return [[rng.randrange(3, 61) for _ in range(rng.randint(1, 40))] for _ in range(count)]


def params_of(number: int) -> SamplingParams:
    if number == 2:  # the sampler's; lab 03's noise is the same on every path
        return SamplingParams(temperature=0.0, repetition_penalty=1.3, max_tokens=9)
    return SamplingParams(temperature=0.0, max_tokens=6 + 4 * number, ignore_eos=True)


def texts_of(engine: Engine) -> tuple[dict[int, tuple[int, ...]], set[type]]:
    """The tokens of each request, and the kinds of events; checked after every step."""
    found, kinds = {}, set()
    for number, prompt in enumerate(prompts_of()):
        engine.add_request(prompt, params_of(number), seed=number, request_id=number)
    for _ in range(400):
        for event in engine.step():
            kinds.add(type(event))
            if isinstance(event, Finished):
                found[event.request_id] = event.completion.token_ids
        engine.check()
        if not engine.has_unfinished:
            return found, kinds
    raise AssertionError("still running after 400 steps")


@pytest.fixture(scope="module")
def wanted(model: torch.nn.Module) -> dict[int, tuple[int, ...]]:
    """What the plain engine on slots says."""
    found, _ = texts_of(Engine(model, EngineConfig(max_num_seqs=4)))
    assert len(set(found.values())) == len(found) == 7
    return found


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("manager", MANAGERS)
@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_another_make_give_the_same_texts(make, wanted, kind, manager, scheduler) -> None:
    """Also where blocks are so short that requests are preempted again and again."""
    for num_blocks in (40, 6):
        parts = SCHEDULERS[scheduler], MANAGERS[manager](num_blocks, BLOCK)
        engine = make(kind, *parts)
        found, kinds = texts_of(engine)
        assert found == wanted
        assert Failed not in kinds
        assert (Preempted in kinds) == (num_blocks == 6)
        assert engine.store.free_tokens == num_blocks * BLOCK
        assert engine.store.manager.owners() == {}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_store_without_blocks_gives_the_same_texts(model, wanted, scheduler) -> None:
    store: KVStore = GrowingStore(CONFIG, 640)
    config = EngineConfig(max_num_seqs=4, max_num_batched_tokens=40)
    engine = Engine(model, config, store=store, make_scheduler=SCHEDULERS[scheduler])
    assert texts_of(engine)[0] == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_made_of_three_public_methods(make, wanted, kind) -> None:
    """By hand: schedule, then execute, draw, update. To execute a plan twice changes nothing."""
    engine, found = make(kind), {}
    for number, prompt in enumerate(prompts_of()):
        engine.add_request(prompt, params_of(number), seed=number, request_id=number)
    engine.step()  # it reads the notes of the arrivals
    for step in range(200):
        plan = engine.scheduler.schedule()
        assert plan.budget_left == plan.budget - plan.num_tokens >= 0
        logits = engine.execute(plan)
        if step % 3 == 1:
            logits = engine.execute(plan)
        outcomes = engine.draw(plan, logits)
        assert len(outcomes) == len(plan.chunks)
        assert [o is not None for o in outcomes] == [c.completes for c in plan.chunks]
        for event in engine.update(plan, outcomes):
            if isinstance(event, Finished):
                found[event.request_id] = event.completion.token_ids
        engine.check()
        if not engine.has_unfinished:
            break
    assert found == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_logits_of_another_maker_are_drawn_from(make, kind) -> None:
    """As when an executor of lab 10 computes them: the engine's own are not taken instead."""
    engine = make(kind)
    engine.add_request([5, 6, 7], SamplingParams(temperature=0, max_tokens=4))
    engine.step()
    plan = engine.scheduler.schedule()
    engine.execute(plan)
    logits = torch.zeros(1, 61)
    logits[0, 33] = 1.0
    assert engine.draw(plan, logits)[0].token_id == 33


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("manager", MANAGERS)
def test_the_dashboard_reads_any_scheduler_and_manager(make, kind, manager) -> None:
    engine = make(kind, HeapScheduler, MANAGERS[manager](40, BLOCK))
    for number, prompt in enumerate(prompts_of()):
        engine.add_request(prompt, params_of(number), request_id=number)
    engine.step()
    state = engine_state(engine, {})
    assert [row["id"] for row in state["waiting"]] == [
        str(r.sequence.request_id) for r in engine.scheduler.queue()
    ]
    shown = {block for row in state["running"] for block in row["blocks"]}
    assert shown == set(engine.store.manager.owners())
    assert (state["kv"]["num_blocks"], state["kv"]["block_size"]) == (40, BLOCK)
    assert (state["kv"]["prefix"] is None) == (manager == "sets")


def test_the_simulator_runs_any_scheduler() -> None:
    trace = [Arrival(0.1 * i, 5 + i, 4) for i in range(9)]
    manager = SetManager(4, BLOCK)
    scheduler: SchedulerInterface = HeapScheduler(manager, clock=ManualClock())
    run = simulate(trace, scheduler, StepCost())
    assert len(run.timelines) == 9
    assert manager.owners() == {}


def of_length(number: int, length: int) -> Request:
    return Request(number, SimulatedSequence(number, length, 9), 0.0, length + 8)


def store_all(manager: BlockManagerInterface, request: Request) -> list[int]:
    start = manager.admit(request)
    end = request.num_tokens
    manager.commit(Plan((Chunk(request, start, end - start, end),)))
    request.num_computed_tokens = end
    return manager.block_ids(request)


@pytest.mark.parametrize(
    "manager",
    [partial(BlockManager, enable_prefix_caching=False), BlockManager, SetManager],
    ids=["lab 05's, no cache", "lab 05's", "sets"],
)
class TestHolding:
    @pytest.mark.parametrize("owner", ["a transfer", ("host copy", 3), "a request"])
    def test_what_is_held_outlives_its_request(self, manager, owner) -> None:
        manager, request = manager(6, 4), of_length(0, 10)
        owner = of_length(9, 3) if owner == "a request" else owner
        blocks = store_all(manager, request)
        manager.hold(blocks[:2], owner)
        manager.check([request])
        assert manager.owners()[blocks[0]] == [request, owner]
        manager.release(request)
        manager.check([])
        assert manager.owners() == {block: [owner] for block in blocks[:2]}
        assert manager.free_tokens == 16
        others = store_all(manager, of_length(1, 16))
        assert not set(others) & set(blocks[:2]) or manager.prefix_stats is not None
        manager.drop(blocks[:2], owner)
        manager.check()
        assert all(owner not in holders for holders in manager.owners().values())

    def test_who_writes_into_a_held_block_writes_into_a_copy(self, manager) -> None:
        manager, request = manager(6, 4), of_length(0, 6)
        blocks = store_all(manager, request)
        manager.hold(blocks, "a transfer")
        assert manager.reserve(request, 1)
        now = manager.block_ids(request)
        assert now[0] == blocks[0]
        assert now[1] != blocks[1]
        assert [(move.old, move.new) for move in manager.transfers] == [(blocks[1], now[1])]
        assert manager.owners()[blocks[1]] == ["a transfer"]
        manager.check([request])

    def test_what_is_wrong_is_refused_and_changes_nothing(self, manager) -> None:
        manager, request = manager(6, 4), of_length(0, 6)
        first, second = store_all(manager, request)
        manager.hold([first], "x")
        free = next(block for block in range(6) if block not in (first, second))
        before = manager.owners()
        for wrong in ([second, free], [second, first], [second, second]):
            with pytest.raises(BlockOwnershipError):
                manager.hold(wrong, "x")
        with pytest.raises(BlockOwnershipError):
            manager.hold([first], request)
        for wrong, owner in (([first, second], "x"), ([first], "y"), ([first, first], "x"),
                             ([first], request)):  # fmt: skip
            with pytest.raises(BlockOwnershipError):
                manager.drop(wrong, owner)
        assert manager.owners() == before
        manager.check([request])


def test_a_held_block_stays_where_it_is_when_blocks_are_moved() -> None:
    manager = BlockManager(8, 4, enable_prefix_caching=False)
    requests = [of_length(number, 8) for number in range(3)]
    blocks = [store_all(manager, request) for request in requests]
    manager.hold(blocks[2][:1], "a transfer")
    manager.release(requests[0])
    assert compact(manager) > 0
    assert blocks[2][0] in manager.block_ids(requests[2])
    assert manager.owners()[blocks[2][0]] == [requests[2], "a transfer"]
    manager.check(requests[1:])


def test_added_and_given_up_from_other_threads_at_any_moment(model) -> None:
    """Ids chosen by the callers, and used again as soon as they are free."""
    engine, stop, errors = Engine(model, EngineConfig(max_num_seqs=3)), threading.Event(), []

    def caller(first: int) -> None:
        rng = random.Random(first)
        while not stop.is_set():
            request_id = first + rng.randrange(2)
            try:
                engine.add_request([5, 6], SamplingParams(max_tokens=2), request_id=request_id)
            except ValueError:
                pass  # in use
            except Exception as error:
                errors.append(error)
            engine.abort(first + rng.randrange(2))

    threads = [threading.Thread(target=caller, args=(10 * i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    seen = set()
    try:
        for _ in range(150):
            seen |= {type(event) for event in engine.step()}
            engine.check()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    for _ in range(50):
        engine.step()
    assert not engine.has_unfinished
    assert errors == []
    assert Aborted in seen


def test_a_note_does_not_hit_the_next_request_of_an_id(model) -> None:
    """Given up and finished in one step; the id is used again before the note is read."""
    engine = Engine(model)

    def sampler(logits, rows):
        engine.abort(7)
        return plain(logits, rows)

    plain, engine.sampler = engine.sampler, sampler
    engine.add_request([5], SamplingParams(temperature=0, max_tokens=1), request_id=7)
    engine.step()
    engine.sampler = plain
    engine.add_request([6], SamplingParams(temperature=0, max_tokens=1), request_id=7)
    assert not any(isinstance(event, Aborted) for event in engine.run())


ABOVE = ("fast", "gpu", "serving", "llm", "bench")
INSIDE = re.compile(
    r"(engine|scheduler|manager|store|front)\._[a-z]|"
    r"manager\.(tables|pool|prefix|swap|sharing|held|num_unused_slots)\b|"
    r"\.(slot_of|free_slots|free_queue|block_owners)\b|super\(\)\._[a-z]"
)


def test_nothing_above_reads_what_is_inside() -> None:
    """Engines, dashboard and bench; and no check or scenario of labs 04 and 07."""
    paths = [p for name in ABOVE for p in (ROOT / "solutions/nanovllm" / name).glob("*.py")]
    for lab in ("lab04", "lab07"):
        checks = (ROOT / "labs" / lab).glob("test_*.py")
        paths += [p for p in checks if p.name != "test_5_slots.py"]
        paths += (ROOT / "solutions/hidden" / lab).glob("*.py")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if INSIDE.search(line)
    ]
    assert found == []
