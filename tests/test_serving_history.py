"""The hour that a server remembers: rows, percentiles, and where the time of requests went."""

from __future__ import annotations

import random
from typing import Any

import httpx
import numpy as np
import pytest

from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.events import Aborted, Admitted, Failed, Preempted, Queued, Stepped
from nanovllm.generation.events import Finished, TokenGenerated
from nanovllm.generation.latency import ManualClock
from nanovllm.generation.params import SamplingParams
from nanovllm.paging.store import PagedStore
from nanovllm.serving import history
from nanovllm.serving.history import History
from tests.serving_tools import CONFIG, MODEL, TOKENIZER, live, tiny_engine, wait_until


def engine_that_preempts(clock: ManualClock) -> Engine:
    config = EngineConfig(max_num_seqs=4, max_num_batched_tokens=24)
    store = PagedStore(CONFIG, 14, 4)
    return Engine(MODEL, config, tokenizer=TOKENIZER, store=store, clock=clock)


def phases_by_hand(events: list[Any]) -> list[tuple[str, float]]:
    """Of one sample: what each moment of its life was, in steps of the clock."""
    found, names = [], {Queued: "queued", Admitted: "prefill", Preempted: "preempted"}
    for event in events:
        name = names.get(type(event), "decode")
        if not isinstance(event, Finished | Aborted) and (not found or found[-1][0] != name):
            found.append((name, event.time))
    return found


@pytest.mark.parametrize("seed", range(3))
def test_phases_fill_the_time_of_every_request(seed: int) -> None:
    rng, clock = random.Random(seed), ManualClock()
    engine = engine_that_preempts(clock)
    kept, seen = History(clock, lambda request_id: f"r{request_id}"), {}
    left = 20
    while left or engine.has_unfinished:
        if left and rng.random() < 0.4:
            left -= 1
            prompt = [rng.randrange(5, 250) for _ in range(rng.randint(1, 20))]
            params = SamplingParams(max_tokens=rng.randint(1, 12), ignore_eos=True, seed=left)
            engine.add_request(prompt, params)
        if rng.random() < 0.05 and engine.scheduler.running:
            engine.abort(rng.choice(list(engine.scheduler.running)).sequence.request_id)
        clock.advance(rng.random())
        events = engine.step()
        for event in events:
            if not isinstance(event, Stepped) and hasattr(event, "index"):
                seen.setdefault((f"r{event.request_id}", event.index), []).append(event)
        kept.observe(events, 0.5)
    told = {(row["id"], row["index"]): row for row in kept.recent(3600)["requests"]}
    assert told.keys() == seen.keys() and not kept.open
    assert any(isinstance(e, Preempted) for events in seen.values() for e in events)
    for who, events in seen.items():
        row, (first, *_, last) = told[who], events
        assert [name for name, _, _ in row["phases"]] == [n for n, _ in phases_by_hand(events)]
        assert [first.time + at for _, at, _ in row["phases"]] == pytest.approx(
            [when for _, when in phases_by_hand(events)]
        )
        assert sum(seconds for *_, seconds in row["phases"]) == pytest.approx(
            last.time - first.time
        )
        assert row["tokens"] == sum(isinstance(e, TokenGenerated) for e in events)
        assert row["state"] == type(last).__name__.lower()
    rows = kept.recent(3600)["rows"]
    assert sum(row["tokens"] for row in rows) == sum(row["tokens"] for row in told.values())
    assert [row["ago"] for row in rows] == sorted((row["ago"] for row in rows), reverse=True)
    ended = sum(row["finished"] + row["failed"] for row in rows)
    assert ended == len(told)


def test_percentiles_are_those_of_the_window() -> None:
    clock, rng = ManualClock(100.0), random.Random(1)
    kept, waits = History(clock, str), []
    for i in range(400):
        clock.advance(1.0)
        wait = rng.expovariate(1.0)
        waits.append(wait)
        arrived = clock() - wait
        kept.observe([Queued(i, 0, arrived), Admitted(i, 0, arrived),
                      TokenGenerated(i, 0, 7, "a", clock())], 0.0)  # fmt: skip
    told = kept.recent(60)
    newest = [w for i, w in enumerate(waits) if 101.0 + i >= (clock() - 60) // 10 * 10]
    assert told["ttft"]["count"] == len(newest)
    for p in (50, 95, 99):
        low, high = (np.percentile(newest, p, method=m) for m in ("lower", "higher"))
        assert low - 1e-9 <= told["ttft"][f"p{p}"] <= high + 1e-9
    assert kept.recent(3600)["ttft"]["count"] == 400
    assert told["tpot"] == {"p50": None, "p95": None, "p99": None, "count": 0}


def test_what_it_remembers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "VALUES", 20)
    clock = ManualClock()
    kept = History(clock, str)
    for i in range(3000):
        clock.advance(2.0)
        end = Failed(i, 0, ValueError("x"), clock()) if i % 2 else Aborted(i, 0, (), "", clock())
        tokens = [TokenGenerated(i, 0, 7, "a", clock()) for _ in range(2)]
        kept.observe([Queued(i, 0, clock()), Admitted(i, 0, clock()), *tokens, end], i / 3000)
    assert len(kept.rows) == history.ROWS and len(kept.ended) == history.ENDED and not kept.open
    assert all(len(row.ttft.kept) <= 20 for row in kept.rows)
    assert len(kept.recent(60)["rows"]) <= 8


def test_events_of_nobody_known_do_no_harm() -> None:
    kept = History(ManualClock(), str)
    kept.observe([TokenGenerated(3, 0, 7, "a", 0.0), Preempted(3, 0, 0.0)], 0.0)
    kept.observe([Aborted(3, 0, (), "", 0.0)], 0.0)
    assert kept.recent(60)["requests"] == []


def test_over_http() -> None:
    body = {"prompt": "Once", "max_tokens": 4, "ignore_eos": True}
    with live(tiny_engine()) as server:
        name = httpx.post(server.url + "/v1/completions", json=body, timeout=60).json()["id"]
        wait_until(lambda: server.server.history.ended)
        [row] = httpx.get(server.url + "/dashboard/history").json()["requests"]
        assert (row["id"], row["state"], row["tokens"]) == (name, "finished", 4)
        assert [phase[0] for phase in row["phases"]] == ["queued", "prefill", "decode"]
        for wrong in ("0", "-1", "x", "nan", "1e9"):
            got = httpx.get(server.url + f"/dashboard/history?window={wrong}")
            assert got.status_code == 400, wrong
