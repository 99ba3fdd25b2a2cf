"""Task 6: the dashboard's data."""

import json
from types import SimpleNamespace

import pytest

from grader import expect
from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.events import Aborted, ChunkRun, Failed, Preempted, Queued, Stepped
from nanovllm.batching.request import Priority
from nanovllm.generation.events import Completion, Finished, TokenGenerated
from nanovllm.generation.latency import ManualClock
from nanovllm.generation.params import SamplingParams
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model
from nanovllm.serving.monitor import Monitor
from nanovllm.serving.snapshot import blocks_of, engine_state

CONFIG = ModelConfig("qwen3", 50, 32, 2, 4, 2, 8, 48, 40, qk_norm=True, eos_token_ids=(2,))


def token(request_id, time, index=0):
    return TokenGenerated(request_id, index, 7, "x", time)


def finished(request_id, time, index=0):
    return Finished(request_id, index, Completion(index, (7,), "x", "stop"), time)


@pytest.mark.check(task=6, points=2, title="The blocks of a request, in whatever store")
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
    config = EngineConfig(max_num_seqs=2, max_num_batched_tokens=7, policy="priority")
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
    frozen = json.loads(json.dumps(state))
    engine.step()
    expect(
        [sorted(state), state == frozen],
        [["kv", "running", "waiting"], True],
        call="the keys of the state; whether it is still the same after another step",
        cause="what leaves the engine's thread must not be what the engine goes on changing",
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
        cause="the queue as it will be served, not as it came",
    )  # fmt: skip


@pytest.mark.check(task=6, points=2, title="Every event is counted where it belongs")
def test_events():
    monitor = Monitor(ManualClock(9.0))
    step = Stepped((ChunkRun(1, 0, 0, 4),), 2, 1, 64, 100, 1.0, 1.5)
    story = [
        Queued(1, 0, 1.0), Queued(1, 1, 1.0), Queued(2, 0, 2.0), Queued(3, 0, 2.0),
        token(1, 3.0), token(1, 3.5, index=1), step, token(1, 5.0), Preempted(2, 0, 5.0),
        Preempted(1, 0, 5.5), token(1, 6.0), finished(1, 6.0), finished(1, 6.5, index=1),
        Aborted(2, 0, (), "", 7.0), Failed(3, 0, ValueError(), 8.0),
    ]  # fmt: skip
    monitor.observe(story, 0.5)
    expect(
        monitor.totals,
        {"requests": 4, "finished": 2, "aborted": 1, "failed": 1, "preemptions": 2, "tokens": 4},
        call="totals after four samples, of which two finished, one aborted and one failed",
    )
    expect(
        [list(monitor.ttfts), list(monitor.tpots), sum(count for _, count in monitor.tokens)],
        [[(3.0, 2.0), (3.5, 2.5)], [(6.0, 1.5)], 4],
        call="points of TTFT and of TPOT as (when, seconds): arrival at 1, tokens at 3, 5 and 6, "
        "and at 3.5 alone (preempted at 5.5); tokens in the window",
        cause="a sample of one token has no TPOT; one that was preempted has spoken already",
    )
    expect(
        [len(monitor.lines), list(monitor.steps)],
        [0, [step]],
        call="samples remembered after the end; steps",
        cause="what has ended is forgotten, or a server's memory grows for ever",
    )


@pytest.mark.check(task=6, points=2, title="The window moves on")
def test_window():
    clock = ManualClock(100.0)
    monitor = Monitor(clock, window=10.0)
    found = []
    for second in range(25):
        clock.now = 100.0 + second
        events = [Queued(second, 0, clock.now - 0.5), token(second, clock.now)]
        events += [token(second, clock.now), finished(second, clock.now)]
        monitor.observe(events if second < 15 else [], 0.0)
        found.append([len(monitor.tokens), len(monitor.ttfts), len(monitor.tpots)])
    expect(
        [found[4], found[10], found[14], found[20], found[24]],
        [[10, 5, 5], [22, 11, 11], [22, 11, 11], [10, 5, 5], [2, 1, 1]],
        call="tokens, TTFT and TPOT points kept with a window of 10 s: two tokens a second for "
        "15 s, looked at after 4, 10, 14, 20 and 24 s",
    )
    recent = monitor.recent()
    clock.now = 200.0
    later = monitor.recent()
    expect(
        [recent["tokens_per_second"], recent["ttft"]["p50"], later["tokens_per_second"],
         later["ttft"]["p50"]],
        [0.2, 0.5, 0.0, None],
        call="tokens a second and median TTFT then, and much later",
    )  # fmt: skip
