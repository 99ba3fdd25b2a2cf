"""Task 7: the simulator."""

import pytest

from grader import expect
from nanovllm.batching.budget import FixedBudget
from nanovllm.batching.events import Queued, Stepped
from nanovllm.batching.plan import Chunk, Plan
from nanovllm.batching.policies import make_policy
from nanovllm.batching.request import Priority
from nanovllm.batching.scheduler import Scheduler
from nanovllm.batching.simulated import CountingStore
from nanovllm.batching.simulator import (
    StepCost,
    jain_fairness,
    report,
    simulate,
    simulate_static,
)
from nanovllm.batching.traces import Arrival, bursty, heavy_tailed
from nanovllm.generation.latency import ManualClock

COST = StepCost(base=1.0, per_token=0.25, per_place=0.0)
TRACE = [Arrival(0.0, 4, 3), Arrival(0.5, 2, 1), Arrival(0.6, 8, 2), Arrival(20.0, 1, 2)]


def scheduler_of(room=1000, budget=6, seats=4, policy="fcfs"):
    """A scheduler; room and budget may also be a store and a budget of their own."""
    return Scheduler(
        CountingStore(room) if isinstance(room, int) else room,
        make_policy(policy),
        FixedBudget(budget) if isinstance(budget, int) else budget,
        max_num_seqs=seats,
        clock=ManualClock(),
    )


def times(run):
    return [line.token_times for line in run.timelines]


@pytest.mark.check(task=7, points=1, title="What a step costs")
def test_cost():
    plan = Plan((Chunk(None, 90, 1, 91), Chunk(None, 16, 8, 40), Chunk(None, 0, 3, 3)))
    expect(
        [StepCost(2.0, 0.5, 0.125).of_plan(plan), StepCost(2.0, 0.5, 0.125).of_plan(Plan())],
        [2.0 + 0.5 * 12 + 0.125 * (91 + 24 + 3), 2.0],
        call="of_plan of chunks 90..90, 16..23, 0..2, and of no chunks; base 2, 0.5, 0.125",
        cause="base + tokens + places, where a chunk's places are those up to its end",
    )


@pytest.mark.check(task=7, points=1, title="Jain's index")
def test_jain():
    expect(
        [jain_fairness(v) for v in ([3.0], [1.0, 3.0], [1.0, 2.0, 5.0, 0.0], [0.0, 0.0])],
        [1.0, 0.8, 64 / 120, 1.0],
        call="jain_fairness of [3], [1, 3], [1, 2, 5, 0], [0, 0]",
        cause="1 where all are equal, 1/n where one has everything",
    )
    expect.raises(ValueError, lambda: jain_fairness([]), call="jain_fairness([])")


@pytest.mark.check(task=7, points=1, title="A trace through the scheduler, to the second")
def test_simulate():
    run = simulate(TRACE, scheduler_of(), COST)
    # steps: 0.0 [4]; 2.0 [1, 2, 3]; 4.5 [1, 5]; 7.0 [1]; idle until 20.0 [1]; 21.25 [1]
    expect(
        times(run),
        [[2.0, 4.5, 7.0], [4.5], [7.0, 8.25], [21.25, 22.5]],
        call="the token times of four requests; a step takes 1 + 0.25 a token, budget 6",
        given={"(time, prompt, output)": [(a.time, a.prompt, a.output) for a in TRACE]},
        cause="a request waits for the step that runs when it comes; with nobody there the clock "
        "jumps to the next arrival",
    )
    expect(
        [run.tokens_computed, [run.arrivals[i] for i in range(4)]],
        [4 + 6 + 6 + 1 + 1 + 1, [0.0, 0.5, 0.6, 20.0]],
        call="tokens computed, and the arrivals",
    )

    far = simulate([Arrival(0.1, 1, 1), Arrival(5.7, 1, 1)], scheduler_of(), COST)
    expect(
        times(far),
        [[0.1 + 1.25], [5.7 + 1.25]],
        call="the token times of two prompts of 1 that come at 0.1 and 5.7 s",
        cause="the clock jumps to the arrival itself: as floats, 1.35 + (5.7 - 1.35) is less than "
        "5.7",
    )
    stuck, asked = None, set()

    class Full(CountingStore):
        def can_admit(self, request):
            asked.add(stuck.clock())
            return False

    stuck = scheduler_of(Full(100))
    expect.raises(
        RuntimeError,
        lambda: simulate(TRACE[:1], stuck, COST),
        call="simulate with a store that never admits anybody",
        cause="a simulation that gets nowhere must say so, not hang",
    )
    expect(
        sorted(asked),
        [0.0, 1.0, 2.0],
        call="the times at which that store was asked; a step without chunks costs 1 s",
        cause="the third step in a row without a chunk is the last",
    )
    later, tried = None, set()

    class OnlyFirst(CountingStore):
        def can_admit(self, request):
            tried.add(later.clock())
            return later.clock() == 0.0

    later = scheduler_of(OnlyFirst(100), seats=1)
    expect.raises(
        RuntimeError,
        lambda: simulate([Arrival(0.0, 2, 1)] * 2, later, StepCost(1.0, 0.0, 0.0)),
        call="simulate with a store that admits one request at 0 s and nobody later",
    )
    expect(
        max(tried),
        3.0,
        call="the last time at which that store was asked; a step takes 1 s",
        cause="three steps in a row without a chunk, after one that had some, are a deadlock too",
    )
    slow, moments = None, set()

    class Slow(CountingStore):
        """It lets somebody in at every third moment at which it is asked."""

        def can_admit(self, request):
            moments.add(slow.clock())
            return len(moments) % 3 == 0

    def patient(count):
        nonlocal slow, moments
        slow, moments = scheduler_of(Slow(100), seats=1), set()
        try:
            return times(simulate([Arrival(0.0, 2, 1)] * count, slow, StepCost(1.0, 0.0, 0.0)))
        except RuntimeError as error:
            return str(error)

    expect(
        [patient(1), patient(3)],
        [[[3.0]], [[3.0], [6.0], [9.0]]],
        call="token times of one request and of three, each let in at the third attempt; a step "
        "takes 1 s",
        cause="two steps in a row without a chunk are patience, three are a deadlock; a step with "
        "one starts the count anew",
    )


@pytest.mark.check(task=7, points=1, title="What a simulation reports, and whom it tells")
def test_reports():
    class Noting(CountingStore):
        def commit(self, plan):
            counted = sum(c.request.num_computed_tokens - c.start for c in plan.chunks)
            committed.append([made.clock(), plan.num_tokens, counted])

    class Watching(FixedBudget):
        def observe(self, seconds, free_share):
            observed.append([seconds, free_share])

    committed, observed = [], []
    trace = [Arrival(0.6, 8, 2), Arrival(0.0, 4, 3), Arrival(0.5, 2, 1)]
    made = scheduler_of(Noting(100), Watching(6))
    events = simulate(trace, made, COST).events
    expect(
        [[e.request_id, e.index, e.time] for e in events if isinstance(e, Queued)],
        [[1, 0, 0.0], [2, 0, 0.5], [0, 0, 0.6]],
        call="the Queued events (request, sample, time) of a trace that is not in order",
        given={"(time, prompt, output)": [(a.time, a.prompt, a.output) for a in trace]},
        cause="requests come by their arrival, under the number of their place in the trace",
    )
    expect(
        [[e.started, e.time] for e in events if isinstance(e, Stepped)],
        [[0.0, 2.0], [2.0, 4.5], [4.5, 7.0], [7.0, 8.25]],
        call="start and end of each step",
        cause="a step starts where the clock stood before it moved",
    )
    expect(
        [committed, observed],
        [
            [[2.0, 4, 0], [4.5, 6, 0], [7.0, 6, 0], [8.25, 1, 0]],
            [[2.0, 0.96], [2.5, 0.92], [2.5, 0.92], [1.25, 1.0]],
        ],
        call="each commit: the time, the tokens, and how many of them num_computed_tokens counts "
        "already; and what the budget observed: seconds, and the share of 100 places that is free",
        cause="the clock moves, then the store commits, then the scheduler updates; places of "
        "requests that have ended are free when it observes",
    )


@pytest.mark.check(task=7, points=1, title="The same trace in static batches")
def test_static():
    run = simulate_static(TRACE, 2, StepCost(base=1.0, per_token=0.25, per_place=0.125))
    # batch [0] at 0: W 4; steps 1 + 1 + 0.5, 1 + 0.25 + 0.625, 1 + 0.25 + 0.75
    # batch [1, 2] at 6.375: W 8, 16 tokens, 16 places: 7.0; then 2 tokens, 18 places: 3.75
    expect(
        times(run),
        [[2.5, 4.375, 6.375], [13.375], [13.375, 17.125], [21.375, 22.875]],
        call="the token times of four requests in static batches of two",
        given={"(time, prompt, output)": [(a.time, a.prompt, a.output) for a in TRACE]},
        cause="a batch is the requests that have arrived; all its rows run until the last is done",
    )
    expect(
        run.tokens_computed,
        4 + 2 + 16 + 2 + 1 + 1,
        call="tokens computed, pads and ended rows included",
    )
    uneven = simulate_static([Arrival(0.0, 1, 1), Arrival(0.0, 1, 4)], 2, StepCost(1.0, 0.0, 0.0))
    expect(
        times(uneven),
        [[1.0], [1.0, 2.0, 3.0, 4.0]],
        call="the token times of a static batch of 1 + 1 and 1 + 4 tokens; a step takes 1 s",
        cause="an ended row still costs time, but it says no more",
    )
    expect(
        times(simulate_static(TRACE[::-1], 2, StepCost(base=1.0, per_token=0.25, per_place=0.125))),
        times(run)[::-1],
        call="the token times of the same trace, written down backwards",
        cause="batches go by arrival, not by place in the trace",
    )
    ties = [Arrival(0.0, 5, 1), Arrival(0.0, 1, 1), Arrival(0.0, 3, 1)]
    expect(
        times(simulate_static(ties, 2, COST)),
        [[3.5], [3.5], [5.25]],
        call="the token times of prompts of 5, 1 and 3 that come at once, in static batches of two",
        cause="of those that come at once, the first in the trace go first",
    )


@pytest.mark.check(task=7, points=1, title="Continuous against static, policy against policy")
def test_comparison():
    cost = StepCost()
    trace = heavy_tailed(seed=3, count=60, rate=25.0, longest=300)
    static = report(simulate_static(trace, 8, cost))
    continuous = report(simulate(trace, scheduler_of(4096, 128, 8), cost))
    wanted = sum(a.prompt + a.output - 1 for a in trace)
    expect(
        [continuous.tokens_computed, continuous.preemptions],
        [wanted, 0],
        call="tokens computed by continuous batching on a heavy-tailed trace, and preemptions",
        cause="nothing is padded and nothing runs on after its end",
    )
    expect.that(
        static.tokens_computed > 2 * wanted and static.ttft_p50 > 4 * continuous.ttft_p50,
        "static batches compute more than twice as much and answer four times later",
        observed=[static.tokens_computed, static.ttft_p50, continuous.ttft_p50],
    )
    busy = bursty(seed=1, count=48, rate=40.0, burst=16)
    found = {
        name: report(simulate(busy, scheduler_of(1500, 128, 6, name), cost))
        for name in ("fcfs", "sjf", "round-robin", "priority-with-ageing")
    }
    expect.that(
        found["sjf"].latency_p50 < found["fcfs"].latency_p50
        and found["round-robin"].preemptions > 0 == found["fcfs"].preemptions,
        "shortest job first has the lower median, and only round robin hands turns on",
        observed=[found[n].latency_p50 for n in ("sjf", "fcfs")]
        + [found["round-robin"].preemptions],
    )
    first = [
        run.timelines[i].ttft
        for run in [simulate(busy, scheduler_of(1500, 128, 6, "priority-with-ageing"), cost)]
        for i, arrival in enumerate(busy)
        if arrival.priority is Priority.HIGH
    ]
    expect.that(
        max(first) < found["priority-with-ageing"].longest_wait,
        "the longest wait under priorities is not that of an urgent request",
        observed=max(first),
    )
