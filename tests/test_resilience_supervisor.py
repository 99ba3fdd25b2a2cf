"""An engine that dies at any step: its requests end once, with the texts of one that never does."""

from __future__ import annotations

import random
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.events import Aborted, Failed, Preempted
from nanovllm.cli.serve import _maker
from nanovllm.generation.events import Completion, Finished
from nanovllm.generation.params import SamplingParams
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model
from nanovllm.resilience.checker import complaints, transcripts
from nanovllm.resilience.errors import GaveUpError, PoisonedRequestError
from nanovllm.resilience.faults import FaultyEngine, draw_faults, shrink
from nanovllm.resilience.kinds import Fault, Kind
from nanovllm.resilience.restarts import RestartLimit
from nanovllm.resilience.supervisor import SupervisedEngine
from tests.serving_tools import TOKENIZER

TINY = dummy_model(
    ModelConfig("qwen3", 2048, 8, 1, 2, 1, 4, 8, 128, qk_norm=True, eos_token_ids=(0, 2)), seed=1
)
ALWAYS = RestartLimit(most=10**6)


def engine() -> Engine:
    return Engine(TINY, EngineConfig(max_num_seqs=3, max_num_batched_tokens=16),
                  tokenizer=TOKENIZER)  # fmt: skip


def asked(seed: int) -> list[tuple[list[int], SamplingParams]]:
    """Requests of every kind that a cut could harm."""
    draws = random.Random(seed)
    found = []
    for number in range(draws.randint(1, 6)):
        more: dict[str, Any] = draws.choice(
            [
                {},
                {"presence_penalty": 1.5, "frequency_penalty": 0.7},
                {"repetition_penalty": 1.4},
                {"min_tokens": 5, "logit_bias": {2: 50}},
                {"stop": ["e", "an", " t"]},
                {"n": 3},
                {"logprobs": 2},
                {"temperature": 0.0},
            ]
        )
        prompt = [draws.randrange(3, 2000) for _ in range(draws.randint(1, 20))]
        params = {"max_tokens": draws.randint(1, 12), "seed": number, "ignore_eos": number % 2 > 0}
        if more.get("min_tokens", 0) > params["max_tokens"]:
            params["max_tokens"] = 9
        found.append((prompt, SamplingParams(**params | more)))
    return found


def run(seed: int, faults: tuple[Fault, ...] | None) -> tuple[list[Any], Any]:
    """All events; with `faults` (even none) of a supervised engine, else of a plain one."""
    steps = count()
    made = (
        engine()
        if faults is None
        else SupervisedEngine(lambda: FaultyEngine(engine(), faults, steps), ALWAYS)
    )
    draws, events = random.Random(f"arrivals {seed}"), []
    for number, (prompt, params) in enumerate(asked(seed)):
        made.add_request(prompt, params, request_id=number)
        for _ in range(draws.randint(0, 3)):
            if made.has_unfinished:
                events += made.step()
    for _ in range(2000):
        if not made.has_unfinished:
            break
        events += made.step()
        made.check()
    assert made.store.free_tokens == made.store.total_tokens
    return events, made


def truth(seed: int) -> dict[tuple[int, int], Completion]:
    events, _ = run(seed, None)
    return {(e.request_id, e.index): e.completion for e in events if isinstance(e, Finished)}


def wrong(seed: int, faults: tuple[Fault, ...]) -> list[str]:
    # Three deaths in a row are blamed on whoever was there: at most two come.
    events, _ = run(seed, faults)
    return complaints(transcripts(events), truth(seed))


def find_wrong(seeds: range) -> None:
    for seed in seeds:
        faults = draw_faults(seed, 40, 2)
        if wrong(seed, faults):
            least = shrink(faults, lambda some, seed=seed: bool(wrong(seed, tuple(some))))
            pytest.fail(f"seed {seed}, {least}: {wrong(seed, least)}")


def test_random_faults() -> None:
    find_wrong(range(50))


@pytest.mark.proof
def test_many_random_faults() -> None:
    find_wrong(range(50, 10_050))


def test_a_run_without_faults_is_the_engines_own() -> None:
    plain, _ = run(3, None)
    supervised, made = run(3, ())
    assert [type(event) for event in supervised] == [type(event) for event in plain]
    assert made.restarts == 0


def test_preempted_is_told_for_who_was_running() -> None:
    made = SupervisedEngine(_dies_at(1), ALWAYS)
    first = made.add_request([5, 6], SamplingParams(max_tokens=3, seed=1, ignore_eos=True))
    events = [event for _ in range(2) for event in made.step()]
    assert [e.request_id for e in events if isinstance(e, Preempted)] == [first]


def _dies_at(*steps: int) -> Any:
    numbers = count()
    faults = tuple(Fault(step, Kind.CRASH) for step in steps)
    return lambda: FaultyEngine(engine(), faults, numbers)


class Poisoned(Engine):
    """Dies whenever it computes a prompt that begins with 13."""

    def step(self) -> list[Any]:
        for request in [*self.scheduler.running, *self.scheduler.waiting]:
            if request.sequence.prompt_token_ids[0] == 13 and request.num_computed_tokens:
                raise RuntimeError("poison")
        return super().step()


def test_a_poisoned_request_fails_alone() -> None:
    config = EngineConfig(max_num_seqs=8)
    made = SupervisedEngine(lambda: Poisoned(TINY, config, tokenizer=TOKENIZER), ALWAYS)
    params = SamplingParams(max_tokens=8, ignore_eos=True, seed=0)
    ids = [made.add_request([first, 4, 5], params) for first in (7, 13, 8, 9)]
    events = []
    while made.has_unfinished:
        events += made.step()
    failed = [event for event in events if isinstance(event, Failed)]
    assert [event.request_id for event in failed] == [ids[1]]
    assert isinstance(failed[0].error, PoisonedRequestError)
    done = {event.request_id for event in events if isinstance(event, Finished)}
    assert done == {ids[0], ids[2], ids[3]}
    assert made.restarts <= 5


def test_a_crash_loop_ends() -> None:
    made = SupervisedEngine(_dies_at(*range(100)), RestartLimit(most=4, window=60.0))
    made.add_request([5], SamplingParams())
    with pytest.raises(GaveUpError, match="4 times within 60 s"):
        for _ in range(100):
            made.step()
            made.add_request([5], SamplingParams())
    assert made.failure is not None
    assert made.restarts == 4


def test_an_engine_that_cannot_be_made_again() -> None:
    makers = iter([_dies_at(0), None])
    made = SupervisedEngine(lambda: next(makers)())
    made.add_request([5], SamplingParams())
    with pytest.raises(GaveUpError, match="no new engine can be made"):
        made.step()


@pytest.mark.parametrize("when", ["before", "after"])
def test_abort_beside_a_death(when: str) -> None:
    made = SupervisedEngine(_dies_at(2), ALWAYS)
    params = SamplingParams(max_tokens=30, ignore_eos=True, seed=0)
    mine, other = made.add_request([5, 6], params), made.add_request([7], params)
    events = [*made.step(), *made.step()]
    if when == "before":
        made.abort(mine)
    events += made.step()  # dies
    assert made.restarts == 1
    if when == "after":
        made.abort(mine)
    while made.has_unfinished:
        events += made.step()
    heard = transcripts(events)
    assert [type(end) for end in heard[mine, 0].ends] == [Aborted]
    assert [type(end) for end in heard[other, 0].ends] == [Finished]
    assert heard[mine, 0].ends[0].token_ids == tuple(heard[mine, 0].token_ids)


def test_a_deadline_is_not_begun_anew() -> None:
    now = [100.0]
    engines: list[Any] = []

    class Urgent(Engine):
        def add_request(self, *args: Any, **more: Any) -> int:
            engines.append(more.get("deadline"))
            more.pop("deadline", None)
            return super().add_request(*args, **more)

    dies = iter([True, False])
    made = SupervisedEngine(
        lambda: FaultyEngine(
            Urgent(TINY, EngineConfig(), tokenizer=TOKENIZER),
            (Fault(0, Kind.CRASH),) if next(dies) else (), count(),
        ),
        ALWAYS, clock=lambda: now[0],
    )  # fmt: skip
    made.add_request([5], SamplingParams(), deadline=10.0)
    now[0] += 4.0
    made.step()
    assert engines == [10.0, 6.0]


def test_other_weights_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"the first ones")
    rung = SimpleNamespace(make_engine=engine)
    llm = SimpleNamespace(folder=tmp_path, rung=rung, model=object())
    make = _maker(llm, None)  # type: ignore[arg-type]
    assert isinstance(make(), Engine)
    (tmp_path / "model.safetensors").write_bytes(b"other ones")
    made = SupervisedEngine(make, engine=_dies_at(0)())
    made.add_request([5], SamplingParams())
    with pytest.raises(GaveUpError, match=r"model\.safetensors in .* changed"):
        made.step()
