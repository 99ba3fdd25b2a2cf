"""A guardian and a small engine in one process: levels, health, metrics, and the report."""

from __future__ import annotations

import json
import logging
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.events import Preempted, Stepped
from nanovllm.generation.latency import ManualClock
from nanovllm.generation.params import SamplingParams
from nanovllm.paging.store import PagedStore
from nanovllm.resilience.checker import ladder_complaints
from nanovllm.resilience.failures import Level
from nanovllm.resilience.faults import FaultyEngine, draw_faults
from nanovllm.resilience.guardian import Guardian
from nanovllm.resilience.kinds import DEATHS, Fault, Kind
from nanovllm.resilience.ladder import Ladder, Rules
from nanovllm.resilience.progress import Monitors
from nanovllm.resilience.relief import Brake
from nanovllm.resilience.restarts import RestartLimit
from nanovllm.resilience.supervisor import SupervisedEngine
from nanovllm.resilience.vitals import Limits
from nanovllm.serving.config import ServeConfig
from nanovllm.speculative.guess_policy import FixedPolicy
from nanovllm.speculative.lookup import PromptLookup
from nanovllm.speculative.verify import SpeculativeEngine
from tests.processes import ROOT
from tests.serving_tools import MODEL, TOKENIZER, Live, tiny_engine, wait_until


@contextmanager
def guarded(
    folder: Path,
    make: Callable[[], Any],
    patience: float = 30.0,
    brake: Brake | None = None,
    timeout: float | None = None,
) -> Iterator[tuple[Live, Guardian]]:
    guardian = Guardian(make, patience, folder / "evidence.json")
    guardian.brake = brake or guardian.brake
    guardian.ladder = Ladder(Rules(tries=1))
    engine = SupervisedEngine(guardian.make, engine=guardian.guard(make()))
    made = Live(engine, ServeConfig(model_name="tiny", timeout=timeout))
    guardian.attach(made.server)
    with made as server:
        yield server, guardian


class Slow(Engine):
    """Somebody looks while it is at work."""

    def step(self) -> Any:
        time.sleep(0.02)
        return super().step()


def faulty(kind: Kind, *steps: int) -> Callable[[], Any]:
    numbers, faults = count(), [Fault(step, kind) for step in steps]
    return lambda: FaultyEngine(tiny_engine(), faults, numbers)


def ask(server: Live, seed: int = 0, **more: Any) -> httpx.Response:
    body = {"prompt": [5, 6, 7], "max_tokens": 30, "ignore_eos": True, "seed": seed} | more
    return httpx.post(server.url + "/v1/completions", json=body, timeout=60)


def text(answer: httpx.Response) -> str:
    return answer.json()["choices"][0]["text"]


def ready(server: Live, path: str = "/health") -> bool:
    return httpx.get(server.url + path).status_code == 200


def test_without_failures_nothing_changes(tmp_path: Path) -> None:
    with Live() as plain, guarded(tmp_path, tiny_engine) as (server, guardian):
        assert text(ask(server)) == text(ask(plain))
        assert guardian.level is None and not guardian.history
        assert server.metric("recovery_level") == 0.0
        assert ready(server) and ready(server, "/health/live") and ready(plain, "/health/live")
        state = httpx.get(server.url + "/dashboard/state").json()["recovery"]
        assert state["phase"] == "serving" and not any(state["failures"].values())


def test_nan_and_crash_climb_and_a_person_brings_them_down(tmp_path: Path) -> None:
    with Live() as plain, guarded(tmp_path, faulty(Kind.CRASH, 5, 15, 25)) as (server, guardian):
        assert text(ask(server)) == text(ask(plain))
        wait_until(lambda: not ready(server))
        assert [rung.level.name for rung in guardian.history] == [
            "COMPONENT", "SYSTEM", "HUMAN", "HUMAN",
        ]  # fmt: skip
        report = json.loads((tmp_path / "evidence.json").read_text())
        assert report["highest"] == "HUMAN" and report["failures"]["crash"] == 3
        assert "crash on purpose" in report["last_error"]
        refused = httpx.get(server.url + "/health").json()["error"]["message"]
        assert "given up" in refused and "evidence.json" in refused
        assert ready(server, "/health/live")
        assert server.metric("failures_total", failure="crash") == 3.0
        assert server.metric("recoveries_total", level="component") == 1.0
        assert server.metric("recovery_level") == 5.0
        assert text(ask(server)) == text(ask(plain))  # who asks all the same is answered
        (tmp_path / "evidence.json").unlink()
        wait_until(lambda: ready(server))
        assert guardian.level is None


def test_a_new_engine_that_does_not_start_is_tried_again(tmp_path: Path) -> None:
    made, starts = faulty(Kind.CRASH, 5), count()

    def make() -> Any:
        if next(starts) == 1:
            raise RuntimeError("no memory for it now")
        return made()

    with Live() as plain, guarded(tmp_path, make) as (server, guardian):
        assert text(ask(server)) == text(ask(plain))
        assert guardian.failures["crash"] == 2
        assert [rung.level.name for rung in guardian.history] == ["COMPONENT", "SYSTEM"]


def test_a_supervisor_that_gives_up_asks_for_a_person(tmp_path: Path) -> None:
    with guarded(tmp_path, faulty(Kind.CRASH, *range(2, 99))) as (server, _):
        assert ask(server).status_code in (500, 503)
        wait_until(lambda: (tmp_path / "evidence.json").exists())
        assert not ready(server) and ready(server, "/health/live")


def test_a_full_store_closes_the_door_for_a_while(tmp_path: Path) -> None:
    def small() -> Engine:
        return Slow(
            MODEL, tokenizer=TOKENIZER, config=EngineConfig(max_num_seqs=8),
            store=PagedStore(MODEL.config, 12, 8),
        )  # fmt: skip

    with Live() as plain, guarded(tmp_path, small, brake=Brake(hold=1.0)) as (server, guardian):
        guardian._monitors = Monitors(Limits(free=0.5))  # of 12 blocks; so it is often enough
        budget = guardian._engine.scheduler.budget
        whole = budget.limit
        body = {"prompt": [[5, number] for number in range(6)], "max_tokens": 60, "seed": 3}
        got = [choice["text"] for choice in ask(server, **body).json()["choices"]]
        assert got == [choice["text"] for choice in ask(plain, **body).json()["choices"]]
        wait_until(lambda: guardian.recoveries["adjust"])
        wait_until(lambda: guardian.level is None)
        assert guardian.recoveries["request"] == 0 and budget.limit == whole
        assert ready(server)


def test_a_brake_makes_steps_smaller_and_the_server_unready(tmp_path: Path) -> None:
    with guarded(tmp_path, tiny_engine) as (server, guardian):
        budget = guardian._engine.scheduler.budget
        whole = budget.limit
        guardian.brake.alarm(time.monotonic())
        assert budget.limit == int(0.7 * whole) and not ready(server)
        assert guardian.level == 1 and ready(server, "/health/live")


def test_a_brake_reaches_an_engine_that_guesses(tmp_path: Path) -> None:
    engine = type("Guessing", (SpeculativeEngine, Engine), {})(
        MODEL, EngineConfig(max_num_batched_tokens=100), tokenizer=TOKENIZER,
        store=PagedStore(MODEL.config, 40, 8), proposer=PromptLookup(1, 3),
        guess_policy=FixedPolicy(2), clock=ManualClock(),
    )  # fmt: skip
    guardian = Guardian(lambda: engine, 30.0, tmp_path / "evidence.json", clock=ManualClock())
    guardian.guard(engine)
    budgets = []
    for alarm in (False, True):
        if alarm:
            guardian.brake.alarm(0.0)
        engine.add_request([5 + alarm] * 120, SamplingParams(max_tokens=1))
        stepped = [event for event in engine.run() if isinstance(event, Stepped)]
        budgets.append((stepped[0].budget, sum(run.length for run in stepped[0].chunks)))
    assert budgets == [(100, 100), (70, 70)]


@pytest.mark.parametrize("guesses", [False, True], ids=["plain", "guesses"])
def test_behind_a_brake_nobody_makes_room_for_who_may_not_come_in(
    tmp_path: Path, guesses: bool
) -> None:
    now, config = [0.0], EngineConfig(max_num_seqs=1, policy="priority")
    parts: dict[str, Any] = {"store": PagedStore(MODEL.config, 100, 8)}
    if guesses:
        parts |= {"proposer": PromptLookup(1, 3), "guess_policy": FixedPolicy(2)}
    made: Any = type("Guessing", (SpeculativeEngine, Engine), {}) if guesses else Engine
    guardian = Guardian(lambda: None, 30.0, tmp_path / "evidence.json", lambda: now[0])
    engine = guardian.guard(made(MODEL, config, **parts))
    long = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)

    def steps(count: int) -> list[Any]:
        return [event for _ in range(count) for event in engine.step()]

    engine.add_request([5, 6], long, priority=1)
    [before] = [event.budget for event in steps(1) if isinstance(event, Stepped)]
    guardian.brake.alarm(0.0)
    engine.add_request([7, 8], long, priority=-1)
    told = steps(3)
    assert not any(isinstance(event, Preempted) for event in told)
    assert {e.budget for e in told if isinstance(e, Stepped)} == {int(0.7 * before)}
    now[0] = 5.0
    assert any(isinstance(event, Preempted) for event in steps(1))


def test_what_is_short_for_long_ends_a_request_with_its_text(tmp_path: Path) -> None:
    def make() -> Engine:
        return Slow(MODEL, tokenizer=TOKENIZER)

    with guarded(tmp_path, make, brake=Brake(hold=2.0, longest=0.1)) as (server, guardian):
        guardian._free = lambda: 0.05
        got = ask(server, max_tokens=250).json()["choices"][0]
        assert got["finish_reason"] == "abort" and got["text"]
        assert guardian.recoveries["request"] == 1


def test_the_least_urgent_is_ended_first(tmp_path: Path) -> None:
    def make() -> Engine:
        return Slow(MODEL, tokenizer=TOKENIZER, config=EngineConfig(policy="priority"))

    with guarded(tmp_path, make, brake=Brake(hold=60.0, longest=0.1)) as (server, guardian):
        with ThreadPoolExecutor(2) as pool:
            older = pool.submit(ask, server, max_tokens=100, priority=-1)
            wait_until(lambda: server.server.engine.num_open)
            younger = pool.submit(ask, server, max_tokens=250)
            wait_until(lambda: server.server.engine.num_open == 2)
            guardian._free = lambda: 0.05
        ends = [one.result().json()["choices"][0]["finish_reason"] for one in (older, younger)]
        assert ends == ["length", "abort"]


@pytest.mark.parametrize("size", [40, 64])
def test_a_pool_that_is_to_shrink_is_compacted_by_level_1(tmp_path: Path, size: int) -> None:
    def make() -> Engine:
        return Slow(MODEL, tokenizer=TOKENIZER, store=PagedStore(MODEL.config, 64, 8))

    with Live() as plain, guarded(tmp_path, make, brake=Brake(hold=1.0)) as (server, guardian):
        with ThreadPoolExecutor(2) as pool:
            long = pool.submit(ask, server, prompt=[5] * 200, max_tokens=8)
            wait_until(lambda: server.server.engine.num_open)
            late = pool.submit(ask, server, max_tokens=120)
            long.result()
            done = httpx.post(server.url + "/compact", json={"num_blocks": size}, timeout=60)
            assert done.json()["moved"] and done.json()["num_blocks"] == size
            assert ready(server) == (size == 64), "64 is what it has: nothing is to shrink"
        assert text(late.result()) == text(ask(plain, max_tokens=120))
        told = int(size < 64)
        assert guardian.failures["fragmentation"] == guardian.recoveries["adjust"] == told
        wait_until(lambda: ready(server))
        again = httpx.post(server.url + "/compact", json={"num_blocks": 36}, timeout=60)
        assert again.json()["num_blocks"] == 36 and ready(server), "nothing lay apart"


def test_swaps_are_counted_over_all_engines(tmp_path: Path) -> None:
    numbers, engines = count(), []

    def make() -> Any:
        small: dict[str, Any] = {"preemption": "swap", "num_host_blocks": 12, "swap_by_cost": True}
        store = PagedStore(MODEL.config, 12, 8, **small)
        store.swapping.pays = lambda *_: True
        engines.append(
            Engine(MODEL, EngineConfig(max_num_seqs=8), store=store, tokenizer=TOKENIZER)
        )
        return FaultyEngine(engines[-1], [Fault(60, Kind.CRASH)], numbers)

    with guarded(tmp_path, make, brake=Brake(hold=0.01)) as (server, _):
        ask(server, prompt=[[5, number] for number in range(6)], max_tokens=60)
        ask(server, prompt=[[5, number] for number in range(6)], max_tokens=60)
        counts = [engine.store.swapping.num_swapped for engine in engines]
        assert len(counts) == 2 and all(counts)
        assert server.metric("num_swapped_total") == sum(counts)


@pytest.mark.parametrize(("policy", "priority"), [("priority", 4), ("fcfs", 5)])
def test_half_of_the_time_is_worth_a_priority(tmp_path: Path, policy: str, priority: int) -> None:
    def make() -> Engine:
        return Slow(MODEL, tokenizer=TOKENIZER, config=EngineConfig(policy=policy))

    with guarded(tmp_path, make, timeout=3.0) as (server, guardian), ThreadPoolExecutor(1) as pool:
        more = {"priority": 5} if policy == "priority" else {}
        asked = pool.submit(ask, server, max_tokens=250, **more)
        wait_until(lambda: guardian._engine.requests.all()[0])
        [sample] = guardian._engine.requests.all()[0]
        before, sample.priority = sample.priority, 5
        assert before == more.get("priority", 0)
        assert asked.result().json()["choices"][0]["stop_reason"] == "timeout"
        assert sample.priority == priority


def test_a_request_out_of_time_is_counted_and_logged(tmp_path: Path, caplog: Any) -> None:
    caplog.set_level(logging.WARNING, "nanovllm.resilience")
    with guarded(tmp_path, tiny_engine) as (server, guardian):
        server.server.handlers.config = server.server.config.__class__(timeout=0.05)
        assert ask(server, max_tokens=250).json()["choices"][0]["stop_reason"] == "timeout"
        wait_until(lambda: guardian.failures["timeout"] == 1)
    [line] = [record.fields for record in caplog.records if record.message == "recovery"]
    assert line["level"] == "request" and line["request_id"].startswith("cmpl-")


def test_a_step_that_nothing_ends_is_not_live(tmp_path: Path) -> None:
    class Stuck(Engine):
        def step(self) -> Any:
            time.sleep(2.5)
            return super().step()

    def make() -> Engine:
        return Stuck(MODEL, tokenizer=TOKENIZER)

    with guarded(tmp_path, make, patience=0.4) as (server, guardian):
        assert ask(server, max_tokens=1).status_code == 200
        assert [rung.level.name for rung in guardian.history][:2] == ["COMPONENT", "SYSTEM"]
        wait_until(lambda: ready(server, "/health/live"))
        assert guardian.failures["hang"] >= 2


def test_recovery_is_a_line_of_json_like_the_others() -> None:
    code = (
        "import logging; from nanovllm.serving.logs import configure_logs; configure_logs()\n"
        "for name in ('serving', 'resilience'):\n"
        "    log = logging.getLogger(f'nanovllm.{name}')\n"
        "    log.warning('recovery', extra={'fields': {'failure': 'hang'}})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True,
                          check=True)  # fmt: skip
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["logger"] for line in lines] == ["nanovllm.serving", "nanovllm.resilience"]
    assert all(line["failure"] == "hang" and line["time"] for line in lines)


def test_histories_keep_to_the_ladder(tmp_path: Path) -> None:
    """The lab's judge on what a guardian does about random deaths, with random calm between."""
    highest = set()
    for seed in range(20):
        draw, clock, numbers = random.Random(seed), ManualClock(), count()
        faults = draw_faults(seed, 40, 12)

        def make(clock: Any = clock, faults: Any = faults, numbers: Any = numbers) -> Any:
            return FaultyEngine(tiny_engine(clock=clock), faults, numbers, clock)

        guardian = Guardian(make, 2.0, tmp_path / "evidence.json", clock)
        first = guardian.guard(make())
        engine = SupervisedEngine(guardian.make, RestartLimit(10**6), clock, first)
        for number in range(40):
            engine.add_request([5 + number, 6, 7])
            engine.step()
            clock.advance(draw.choice((0.1, 1.0, 30.0, 70.0) if seed % 2 else (0.1, 1.0)))
        deaths = sum(fault.kind in DEATHS for fault in faults)
        assert engine.restarts == len(guardian.history) == deaths
        assert ladder_complaints(guardian.history, guardian.ladder.rules) == []
        highest |= {rung.level for rung in guardian.history}
    assert highest == {Level.COMPONENT, Level.SYSTEM, Level.HUMAN}
