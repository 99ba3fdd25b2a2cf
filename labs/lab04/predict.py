"""Questions to guess at before lab 04 is written; your own code answers them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grader.student.predict import Question

if TYPE_CHECKING:
    from nanovllm.batching.simulator import Run
    from nanovllm.batching.traces import Arrival


def _played(trace: list[Arrival], room: int, budget: int) -> Run:
    from nanovllm.batching.budget import FixedBudget
    from nanovllm.batching.scheduler import Scheduler
    from nanovllm.batching.simulated import CountingStore
    from nanovllm.batching.simulator import StepCost, simulate
    from nanovllm.generation.latency import ManualClock

    scheduler = Scheduler(CountingStore(room), budget=FixedBudget(budget), clock=ManualClock())
    return simulate(trace, scheduler, StepCost(per_place=0.0))  # the questions name no places


def steps_of_one() -> float:
    from nanovllm.batching.events import Stepped
    from nanovllm.batching.traces import Arrival

    events = _played([Arrival(0.0, 10, 3)], room=100, budget=4).events
    return sum(isinstance(event, Stepped) for event in events)


def preemptions() -> float:
    from nanovllm.batching.events import Preempted
    from nanovllm.batching.traces import Arrival

    events = _played([Arrival(0.0, 6, 8)] * 3, room=20, budget=16).events
    return sum(isinstance(event, Preempted) for event in events)


def wasted() -> float:
    from nanovllm.batching.simulator import StepCost, simulate_static
    from nanovllm.batching.traces import heavy_tailed

    trace = heavy_tailed(seed=3, count=60, rate=28.0, longest=400)
    needed = sum(arrival.prompt + arrival.output - 1 for arrival in trace)
    return 100 * (1 - needed / simulate_static(trace, 8, StepCost()).tokens_computed)


def longest_gap() -> float:
    from nanovllm.batching.traces import Arrival

    trace = [Arrival(0.0, 8, 120)] * 8 + [Arrival(0.1, 1000, 20)]
    run = _played(trace, room=4096, budget=2048)
    return 1000 * max(run.timelines[0].inter_token_latencies)


QUESTIONS = [
    Question(
        key="a",
        text="How many steps does one request with a prompt of 10 and 3 tokens of output need, "
        "with a budget of 4?",
        unit="steps",
        tasks=(4, 7),
        answer=steps_of_one,
    ),
    Question(
        key="b",
        text="Three requests of 6 + 8 tokens in room for 20, first come first served: how many "
        "preemptions?",
        unit="preemptions",
        tasks=(4, 7),
        answer=preemptions,
    ),
    Question(
        key="c",
        text="Static batches of 8, most requests short and a few very long: how many percent of "
        "the tokens computed serve nobody?",
        unit="percent",
        tasks=(7,),
        answer=wasted,
    ),
    Question(
        key="d",
        text="Eight requests are generating when a prompt of 1,000 tokens arrives, and the budget "
        "is 2,048. A step takes 4 ms, and 0.2 ms more for each token. How many ms do they wait for "
        "their next token?",
        unit="ms",
        tasks=(4, 7),
        answer=longest_gap,
    ),
]
