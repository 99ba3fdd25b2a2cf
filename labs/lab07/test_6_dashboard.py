"""Task 6: the dashboard's data."""

import json
from types import SimpleNamespace

import pytest

from grader import expect
from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.request import Priority
from nanovllm.generation.events import Finished, TokenGenerated
from nanovllm.generation.latency import ManualClock
from nanovllm.generation.params import SamplingParams
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model
from nanovllm.serving.snapshot import blocks_of, engine_state

CONFIG = ModelConfig("qwen3", 50, 32, 2, 4, 2, 8, 48, 40, qk_norm=True, eos_token_ids=(2,))


@pytest.mark.check(task=6, points=1, title="The blocks of a request, in whatever store")
def test_blocks():
    first, second = object(), object()
    tables, slot_of = {first: [5, 9, 2], second: []}, {first: [0], second: [3]}
    paged = SimpleNamespace(block_ids=tables.__getitem__)
    slots = SimpleNamespace(block_ids=slot_of.__getitem__)
    counting = SimpleNamespace(total_tokens=100)
    stores = (paged, slots, counting)
    expect(
        [[blocks_of(store, request) for request in (first, second)] for store in stores],
        [[[5, 9, 2], []], [[0], [3]], [[], []]],
        call="blocks_of two requests in a paged store (the second has none), in a slot store "
        "(slots 0 and 3), and in one that only counts",
    )
    held = blocks_of(paged, first)
    tables[first].append(7)
    expect(
        held,
        [5, 9, 2],
        call="the first of them after the store has given the request a fourth block",
        cause="the engine goes on while the picture is drawn: it needs a list of its own",
    )


@pytest.mark.check(task=6, points=2, title="The state is plain data: who runs, and who is next")
def test_state():
    clock = ManualClock()
    config = EngineConfig(max_num_seqs=2, max_num_batched_tokens=7, policy="priority-with-ageing")
    engine = Engine(dummy_model(CONFIG), config, clock=clock)
    params = SamplingParams(max_tokens=9, ignore_eos=True)
    for i, size in enumerate((4, 6)):
        engine.add_request([7] * size, params, seed=i)
    engine.step()
    clock.advance(1.0)
    for i, priority in enumerate((Priority.LOW, Priority.HIGH, Priority.NORMAL)):
        engine.add_request([9] * (3 + i), params, seed=i, priority=priority)
    engine.step()
    clock.advance(2.0)
    state = engine_state(engine, {0: "cmpl-a", 4: "cmpl-e"})
    frozen, store = json.loads(json.dumps(state)), engine.store
    held = [store.total_tokens, store.free_tokens]
    engine.step()
    expect(
        [sorted(state), state == frozen],
        [["kv", "running", "waiting"], True],
        call="the keys of the state; whether it is still the same after another step",
        cause="what leaves the engine's thread must not be what the engine goes on changing",
    )
    expect(
        [state["kv"].get("total_tokens"), state["kv"].get("free_tokens")],
        held,
        call="total_tokens and free_tokens in kv of the state",
    )
    expect(
        [
            [[r["id"], r["state"], r["computed_tokens"], r["age"], r["blocks"]] for r in rows]
            for rows in (state["running"], state["waiting"])
        ],
        [
            [["cmpl-a", "running", 5, 3.0, [0]], ["1", "running", 6, 3.0, [1]]],
            [["3", "waiting", 0, 2.0, []], ["cmpl-e", "waiting", 0, 2.0, []],
             ["2", "waiting", 0, 2.0, []]],
        ],
        call="id, state, computed tokens, age and blocks of two that run and three that wait with "
        "priorities low, high, normal",
    )  # fmt: skip


@pytest.mark.check(
    task=6, points=1, title="Random ending: the picture agrees with the engine, step by step"
)
def test_pictures(rng, seed):
    clock = ManualClock()
    policy = str(rng.choice(["fcfs", "sjf", "priority-with-ageing"]))
    config = EngineConfig(max_num_seqs=2, max_num_batched_tokens=7, policy=policy)
    engine = Engine(dummy_model(CONFIG, seed=seed % 1000), config, clock=clock)
    for i in range(6):
        params = SamplingParams(max_tokens=int(rng.integers(1, 7)), ignore_eos=True)
        prompt = [7] * int(rng.integers(1, 9))
        engine.add_request(prompt, params, seed=i, priority=list(Priority)[int(rng.integers(3))])
    spoke, gone, last = {}, set(), []
    while engine.has_unfinished:
        clock.advance(1.0)
        events = engine.step()
        for event in events:
            if isinstance(event, TokenGenerated):
                spoke[str(event.request_id)] = spoke.get(str(event.request_id), 0) + 1
            if isinstance(event, Finished):
                gone.add(str(event.request_id))
        state = engine_state(engine, {})
        running = {row["id"]: row["output_tokens"] for row in state["running"]}
        waiting = [row["id"] for row in state["waiting"]]
        expect(
            [running, sorted([*running, *waiting, *gone], key=int)],
            [{name: spoke.get(name, 0) for name in running}, [str(i) for i in range(6)]],
            call=f"after a step with policy {policy}: output_tokens of who runs; all who run, wait "
            "or have ended",
            given={"running": list(running), "waiting": waiting, "ended": sorted(gone)},
        )
        came = {*last} - {*waiting}  # who had one token to say has ended by now
        expect(
            [name for name in running if name in last],
            [name for name in last[: len(came)] if name not in gone],
            call=f"with policy {policy}: who came into the batch since the last picture and is "
            "there, in the order of that picture's queue",
            cause="the queue is shown in the order in which it will be admitted",
        )
        last = waiting
