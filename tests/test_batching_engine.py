"""The engine of lab 04 beyond its checks: settings, interrupts, seams, replay."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import FrozenInstanceError

import pytest

from grader.course.paths import ROOT
from nanovllm.batching.budget import FixedBudget
from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.errors import ConfigError, UnknownPolicyError
from nanovllm.batching.events import Aborted, Preempted
from nanovllm.batching.offline import generate_continuous
from nanovllm.batching.policies import RoundRobin
from nanovllm.batching.replay import Replay
from nanovllm.batching.request import Request, Status
from nanovllm.batching.scheduler import Scheduler
from nanovllm.batching.simulated import CountingStore, SimulatedSequence
from nanovllm.generation.errors import RequestError
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.sampling import argmax_sampler
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model

CONFIG = ModelConfig("qwen3", 50, 32, 2, 4, 2, 8, 48, 40, qk_norm=True, eos_token_ids=(2,))
FREE = ["request", "plan", "policies", "budget", "scheduler", "store", "simulated", "simulator"]


def greedy(count: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_num_seqs": 0},
        {"max_num_batched_tokens": 8, "max_num_seqs": 9},
        {"max_chunk": 0},
        {"max_model_len": -1},
        {"max_num_seqs": True},
        {"policy": 5},
    ],
)
def test_bad_settings_are_refused(wrong: dict) -> None:
    with pytest.raises(ConfigError):
        EngineConfig(**wrong)


def test_unknown_policy_names_the_known_ones() -> None:
    with pytest.raises(UnknownPolicyError, match=r"lifo.*fcfs, sjf"):
        EngineConfig(policy="lifo")
    with pytest.raises(FrozenInstanceError):
        EngineConfig().max_num_seqs = 3  # type: ignore[misc]
    with pytest.raises(ConfigError, match="made for 40 tokens"):
        Engine(dummy_model(CONFIG), EngineConfig(max_model_len=41))


def test_scheduler_and_simulator_load_no_torch() -> None:
    names = ", ".join(f"nanovllm.batching.{name}" for name in [*FREE, "events", "replay", "config"])
    program = f"import sys, {names}; sys.exit('torch' in sys.modules)"
    environment = {**os.environ, "NANOVLLM_CODE": "reference"}
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, check=False)
    assert done.returncode == 0


def test_an_interrupt_in_the_middle_of_a_step_loses_nothing() -> None:
    model, calls = dummy_model(CONFIG), []

    def interrupted(logits, rows):
        calls.append(len(rows))
        if len(calls) in (1, 4):
            raise KeyboardInterrupt
        return argmax_sampler(logits, rows)

    prompts = [[5, 6, 7], [8, 9], [10]]
    wanted = generate_continuous(model, prompts, greedy(6)).completions
    engine = Engine(model, EngineConfig(max_num_seqs=2), sampler=interrupted)
    for prompt in prompts:
        engine.add_request(prompt, greedy(6))
    found = {}
    while engine.has_unfinished:
        try:
            for event in engine.step():
                if type(event).__name__ == "Finished":
                    found[event.request_id] = [event.completion]
        except KeyboardInterrupt:
            pass
        engine.check()
    assert [found[i] for i in range(3)] == wanted


def test_an_abort_note_does_not_hit_a_later_request_of_that_id() -> None:
    engine = Engine(dummy_model(CONFIG))
    assert not engine.abort(7)
    engine.add_request([5], greedy(2), request_id=7)
    assert not any(isinstance(event, Aborted) for event in engine.run())


def test_samples_of_one_request_are_requests_of_their_own() -> None:
    engine = Engine(dummy_model(CONFIG), EngineConfig(max_num_seqs=2))
    request_id = engine.add_request([5, 6], SamplingParams(n=5, seed=1, max_tokens=4))
    events = list(engine.run())
    done = [e.index for e in events if type(e).__name__ == "Finished"]
    assert sorted(done) == list(range(5))
    assert next(e for e in events if type(e).__name__ == "Prefilled").request_id == request_id
    with pytest.raises(RequestError):
        engine.add_request([5], SamplingParams(stop="x"))  # no tokenizer


def test_planning_does_not_remember_finished_requests() -> None:
    scheduler = Scheduler(CountingStore(100), budget=FixedBudget(50), max_num_seqs=4)
    for number in range(500):
        request = Request(number, SimulatedSequence(number, 3, 1), 0.0, 3)
        scheduler.add(request)
        scheduler.update(scheduler.schedule())
        scheduler.end(request, Status.FINISHED)
    held = [scheduler.waiting._entries, scheduler.waiting._rank_of, scheduler.running]
    assert [len(book) for book in [*held, scheduler.store.reserved]] == [0, 0, 0, 0]


def test_replay_shows_a_preemption_in_text_and_page(tmp_path) -> None:
    events: list = []
    config = EngineConfig(max_num_seqs=1, policy=RoundRobin(2))
    generate_continuous(
        dummy_model(CONFIG), [[5, 6, 7], [8]], greedy(4), config, on_event=events.append
    )
    assert any(isinstance(event, Preempted) for event in events)
    replay = Replay(events)
    assert replay.row((0, 0)) == "█▪x.█▪"
    page = replay.save(tmp_path / "run.html").read_text(encoding="utf-8")
    assert "computed again" in page
    assert "src=" not in page and "href=" not in page  # self-contained
