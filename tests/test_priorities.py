"""Priority and deadline, from `add_request`, `LLM`, `AsyncLLM` and HTTP, with vLLM's meaning."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import httpx
import pytest

from nanovllm import LLM, AsyncLLM, SamplingParams
from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.events import Preempted
from nanovllm.batching.policies import make_policy
from nanovllm.batching.request import Priority
from nanovllm.batching.urgent_first import UrgentFirst
from nanovllm.generation.errors import RequestError
from nanovllm.generation.events import Finished
from nanovllm.llm import OptionError
from tests.processes import run
from tests.serving_tools import MODEL, Live, tiny_engine

PROMPTS = ["Once upon a time there was a little", "1, 2, 3, 4, 1, 2, 3, 4, 1, 2,", "12 + 30 ="]
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def engine_of(clock: Clock, seats: int = 1, policy: object = "priority") -> Engine:
    config = EngineConfig(max_num_seqs=seats, policy=policy)
    return Engine(MODEL, config, clock=clock)


def told(engine: Engine) -> tuple[list[int], list[int]]:
    """Who ended, and who was preempted, in order."""
    events = []
    while engine.has_unfinished:
        events += engine.step()
        engine.check()
    kinds = (Finished, Preempted)
    return tuple([e.request_id for e in events if isinstance(e, kind)] for kind in kinds)


def test_lower_numbers_go_first_then_earlier_deadlines_then_arrival() -> None:
    engine, one = engine_of(Clock()), SamplingParams(max_tokens=1, temperature=0)
    for priority, deadline in ((5, None), (0, None), (0, 9.0), (0, 2.0), (-7, None), (0, None)):
        engine.add_request([5, 6], one, priority=priority, deadline=deadline)
    assert told(engine)[0] == [4, 3, 2, 1, 5, 0]


def test_classes_are_minus_one_zero_and_one() -> None:
    assert list(Priority) == [Priority.HIGH, Priority.NORMAL, Priority.LOW] == [-1, 0, 1]
    engine, one = engine_of(Clock()), SamplingParams(max_tokens=1, temperature=0)
    for priority in (1, Priority.LOW, 0, Priority.NORMAL, -1, Priority.HIGH, -2):
        engine.add_request([5, 6], one, priority=priority)
    assert told(engine)[0] == [6, 4, 5, 2, 3, 0, 1]


def test_who_waits_displaces_who_runs_only_if_it_is_more_urgent() -> None:
    engine, long = engine_of(Clock()), SamplingParams(max_tokens=9, temperature=0, ignore_eos=True)
    first = engine.add_request([5, 6], long, priority=3)
    for _ in range(3):
        engine.step()
    same = engine.add_request([7, 8], long, priority=3)
    engine.step()
    urgent = engine.add_request([9, 9], long, priority=2)
    assert told(engine) == ([urgent, first, same], [first])


def test_one_seat_is_enough_for_one_displaced() -> None:
    """Of those that run, the one that would have been admitted last gives way, and no other."""
    engine = engine_of(Clock(), 2)
    long = SamplingParams(max_tokens=9, temperature=0, ignore_eos=True)
    for priority in (4, 6):
        engine.add_request([5, priority], long, priority=priority)
    engine.step()
    engine.add_request([9, 9], long, priority=0)
    assert told(engine)[1] == [1]


def test_nobody_starves() -> None:
    """A stream of urgent requests, each of which displaces; the patient one ends all the same."""
    clock, policy = Clock(), UrgentFirst(patience=10.0)
    engine = engine_of(clock, policy=policy)
    few = SamplingParams(max_tokens=3, temperature=0, ignore_eos=True)
    patient, ended = engine.add_request([5, 6], few, priority=4), []
    for _ in range(60):
        engine.add_request([7, 8], few, priority=0)
        for _ in range(3):
            clock.now += 1.0
            ended += [e.request_id for e in engine.step() if isinstance(e, Finished)]
            engine.check()
        if patient in ended:
            break
    assert patient in ended and 40.0 <= clock.now < 80.0


def test_texts_do_not_depend_on_priorities_on_any_engine() -> None:
    want = [o.outputs[0].text for o in LLM(enforce_eager=True).generate(PROMPTS, GREEDY, False)]
    for more in (
        {"enforce_eager": False}, {"enforce_eager": True}, {"engine": "continuous"},
        {"swap_space": 0.1}, {"speculative_config": {"method": "ngram"}},
    ):  # fmt: skip
        llm = LLM(scheduling_policy="priority", max_num_seqs=1, **more)
        llm.runner.on_event = (events := []).append
        outputs = llm.generate(PROMPTS, GREEDY, False, priority=[2, 1, -1], deadline=60.0)
        assert [output.outputs[0].text for output in outputs] == want
        ended = [event.request_id for event in events if isinstance(event, Finished)]
        assert ended == [2, 1, 0]
        llm.runner.engine.check()


@pytest.mark.parametrize(
    ("policy", "given", "says"),
    [
        (
            "fcfs",
            {"priority": 1},
            "priority is 1, but the scheduling policy here, fcfs, reads none",
        ),
        ("fcfs", {"deadline": 1.0}, "deadline is 1.0, but the scheduling policy here, fcfs"),
        ("deadline", {"priority": 1}, "the scheduling policy here, deadline, reads none"),
        ("priority", {"priority": 1.0}, "priority must be a whole number, lower first; got 1.0"),
        ("priority", {"priority": True}, "must be a whole number"),
        ("priority", {"priority": "high"}, "must be a whole number"),
        ("priority-with-ageing", {"priority": 10**400}, "priority must fit into 64 bits"),
        ("priority", {"deadline": 0}, "got 0. One in the past cannot be kept"),
        ("priority", {"deadline": -3.0}, "One in the past cannot be kept"),
        ("priority", {"deadline": math.nan}, "must be seconds from now"),
        ("priority", {"priority": [1, 2]}, "2 values of priority for 3 prompts"),
    ],
)
def test_what_means_nothing_is_refused_before_anything_is_computed(policy, given, says) -> None:
    llm = LLM(enforce_eager=True, scheduling_policy=policy)
    with pytest.raises(RequestError, match=says):
        llm.generate(PROMPTS, GREEDY, False, **given)
    assert not llm.runner.engine.step() and not llm.runner.engine.has_unfinished


def test_zero_is_what_everybody_has_and_other_policies_read_what_they_say() -> None:
    for policy, given in (
        ("fcfs", {"priority": 0}), ("deadline", {"deadline": 9.0}),
        ("priority-with-ageing", {"priority": 3}),
    ):  # fmt: skip
        llm = LLM(enforce_eager=True, scheduling_policy=policy)
        assert llm.generate(PROMPTS[0], GREEDY, False, **given)[0].outputs[0].text
    with pytest.raises(OptionError, match="priority needs lab04"):
        LLM(engine="static").generate(PROMPTS[0], GREEDY, False, priority=1)


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_over_http(path: str) -> None:
    ask = {"max_tokens": 4} | (
        {"prompt": "Hi"}
        if path == "completions"
        else {"messages": [{"role": "user", "content": "Hi"}]}
    )

    def status(server: Live, **more: object) -> tuple[int, str]:
        answer = httpx.post(f"{server.url}/v1/{path}", json=ask | more, timeout=60)
        return answer.status_code, answer.json().get("error", {}).get("message", "")

    with Live(tiny_engine()) as server:
        assert status(server, priority=0) == (200, "") == status(server, priority=None)
        code, says = status(server, priority=5)
        assert code == 400 and "fcfs, reads none" in says
        assert status(server, deadline=5)[0] == 400
        server.assert_idle()
    engine = Engine(MODEL, EngineConfig(policy="priority"), tokenizer=tiny_engine().tokenizer)
    with Live(engine) as server:
        seen, add = [], engine.add_request
        engine.add_request = lambda *a, **more: seen.append(more) or add(*a, **more)
        assert status(server, priority=-3, deadline=30.5) == (200, "")
        assert status(server) == (200, "")
        assert seen == [{"priority": -3, "deadline": 30.5}, {}]
        for bad in ({"priority": 1.5}, {"priority": "1"}, {"priority": True}, {"deadline": -1}):
            assert status(server, **bad)[0] == 400, bad
        server.assert_idle()


def test_async_llm_says_it_too() -> None:
    async def main() -> None:
        async with AsyncLLM(
            enforce_eager=True, scheduling_policy="priority", max_num_seqs=1
        ) as llm:
            ended = []

            async def one(name: str, priority: int) -> None:
                async for _ in llm.generate(PROMPTS[0], GREEDY, name, priority=priority):
                    pass
                ended.append(name)

            await asyncio.gather(one("c", 2), one("b", 1), one("a", 0))
            assert ended == ["a", "b", "c"]
            with pytest.raises(RequestError, match="whole number"):
                await anext(llm.generate(PROMPTS[0], GREEDY, priority="high"))

    asyncio.run(main())


@pytest.mark.parametrize("policy", ["fcfs", "deadline", "priority"])
@pytest.mark.parametrize("deadline", [-1, 0, math.nan, "x"])
def test_an_engine_refuses_a_deadline_that_cannot_be_kept(policy: str, deadline: object) -> None:
    engine = Engine(MODEL, EngineConfig(policy=policy))
    with pytest.raises(RequestError, match="deadline must be seconds from now"):
        engine.add_request([1, 2], SamplingParams(max_tokens=2), deadline=deadline)
    assert not engine.has_unfinished


def test_a_chat_and_a_file_of_prompts_say_it_too(tmp_path: Path) -> None:
    asked, params = [{"role": "user", "content": "Hi"}], SamplingParams(max_tokens=2)
    with pytest.raises(RequestError, match="reads none"):
        LLM().chat(asked, params, False, priority=7)
    urgent = LLM(scheduling_policy="priority")
    assert urgent.chat([asked, asked], params, False, priority=[1, -1], deadline=9.0)
    file = tmp_path / "prompts.jsonl"
    options = ["--file", str(file), "--max-tokens", "2"]
    for policy, said, priority in (
        ("fcfs", "reads none", 1),
        ("priority", "must be a whole number", '"urgent"'),
        ("priority", "", -1),
    ):
        file.write_text(f'{{"prompt": "Hi", "priority": {priority}}}\n"Once"\n')
        done = run("generate", *options, "--scheduling-policy", policy)
        assert done.returncode == (2 if said else 0) and said in done.stderr, done.stderr
    assert "--beam" in run("generate", *options, "--beam", "2").stderr


def test_the_policy_is_found_by_its_name() -> None:
    assert isinstance(make_policy("priority"), UrgentFirst)
    with pytest.raises(OptionError, match="priority"):
        LLM(scheduling_policy="urgent")
