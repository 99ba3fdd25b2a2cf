"""Task 8: the urgent first."""

import math
from dataclasses import replace
from functools import partial

import pytest

from grader import expect
from grader.checks.urgent_histories import play, shrunk, urgent_history
from nanovllm.batching.budget import FixedBudget
from nanovllm.batching.errors import ConfigError
from nanovllm.batching.events import Admitted, Preempted
from nanovllm.batching.policies import make_policy
from nanovllm.batching.replay import Replay
from nanovllm.batching.request import Request, Status
from nanovllm.batching.scheduler import Scheduler
from nanovllm.batching.simulated import CountingStore, SimulatedSequence
from nanovllm.batching.simulator import StepCost, simulate
from nanovllm.batching.traces import Arrival
from nanovllm.batching.urgent_first import UrgentFirst
from nanovllm.generation.latency import ManualClock

A_SECOND = StepCost(base=1.0, per_token=0.0, per_place=0.0)  # a step, whatever it computes


def scheduler_of(patience=1000.0, seats=1, room=1000):
    policy = UrgentFirst(patience=patience)
    store, budget = CountingStore(room), FixedBudget(64)
    return Scheduler(store, policy, budget, max_num_seqs=seats, clock=ManualClock())


def told(trace, kind, **more):
    """A trace, steps of a second: [second, number] of everybody admitted, or preempted."""
    run = simulate(trace, scheduler_of(**more), A_SECOND)
    return [[e.time, e.request_id] for e in run.events if isinstance(e, kind)]


def new_request(number, priority=0, arrival=0.0, deadline=math.inf):
    sequence = SimulatedSequence(number, 4, 8)
    return Request(number, sequence, arrival, 11, priority, deadline=deadline)


@pytest.mark.check(task=8, points=2, title="The lower number, then the deadline, then arrival")
def test_order(rng):
    numbers = [5, 0, 0, 0, -7, 0, 5, 2, -1, 2]
    due = [1.0, math.inf, 99.0, 70.0, math.inf, 99.0, 0.5, math.inf, 2.0, 3.0]
    trace = [Arrival(0.0, 3, 1, *one) for one in zip(numbers, due, strict=True)]
    expect(
        [number for _, number in told(trace, Admitted)],
        [4, 8, 3, 2, 5, 1, 9, 7, 6, 0],
        call="the order in which ten requests come in, one at a time; all came at once",
        given={"(priority, deadline)": list(zip(numbers, due, strict=True))},
        cause="the lower number first; among equal numbers what is due first, and what is never "
        "due last; then arrival, then the request's own number",
    )
    numbers = rng.integers(-3, 4, size=8).tolist()
    times = [float(t) for t in rng.permutation(8) / 16]
    trace = [Arrival(0.0, 3, 2, -9)]
    trace += [Arrival(t, 3, 1, n) for t, n in zip(times, numbers, strict=True)]
    wanted = sorted(range(1, 9), key=lambda i: (numbers[i - 1], times[i - 1]))
    expect(
        [number for _, number in told(trace, Admitted)],
        [0, *wanted],
        call="the order in which requests 1 to 8 come in while request 0 runs, without deadlines",
        given={"(priority, arrival) of 1 to 8": list(zip(numbers, times, strict=True))},
    )


@pytest.mark.check(task=8, points=3, title="A level for each patience in the queue")
def test_levels():
    scheduler = scheduler_of(patience=8.0)
    scheduler.add(new_request(0, -1000))
    scheduler.schedule()
    came = {
        1: (2, 0.0),
        2: (1, 0.0),
        3: (3, 0.0),
        4: (0, 0.0),
        5: (0, 7.5),
        6: (1, 7.5),
        7: (2, 7.5),
    }
    for number, (priority, arrival) in came.items():
        scheduler.clock.now = arrival
        scheduler.add(new_request(number, priority, arrival))
    found, moments = [], (7.75, 8.0, 15.25, 15.5, 16.0, 61.0, 800.25)
    for now in moments:
        scheduler.clock.now = now
        found.append([request.number for request in scheduler.queue()])
    behind = [4, 2, 5, 1, 6, 3, 7]  # each a level above who came later with its number
    expect(
        found,
        [[4, 5, 2, 6, 1, 7, 3], behind, behind, [4, 5, 2, 6, 1, 7, 3], behind, behind, behind],
        call=f"the queue at {moments} s; patience is 8 s, and nobody gets a place",
        given={"(priority, arrival)": came},
        cause="a full patience in the queue is worth one number, and there is no end to that",
    )
    policy = UrgentFirst(patience=8.0)
    back = new_request(0, 4)
    back.move_to(Status.SCHEDULED, 5.0)
    back.move_to(Status.RUNNING, 6.0)
    back.move_to(Status.PREEMPTED, 100.0)
    fresh = [new_request(i, priority, arrival=100.0) for i, priority in enumerate((2, 3, 4), 1)]
    found = []
    for now in (102.0, 103.0, 110.5, 111.0):
        order = sorted([*fresh, back], key=lambda request: policy.rank(request, now))
        found.append([request.number for request in order])
    expect(
        found,
        [[1, 2, 0, 3], [1, 0, 2, 3], [1, 2, 0, 3], [1, 0, 2, 3]],
        call="the order by rank at 102, 103, 110.5, 111 s of request 0, of priority 4, and of 1, "
        "2, 3, of priorities 2, 3, 4, that came at 100 s",
        given={"patience": 8.0, "request 0": "queued 0 to 5 s, ran to 100 s, is back since"},
        cause="all seconds in the queue count, before and after a preemption; those in the batch "
        "do not",
    )


@pytest.mark.check(task=8, points=3, title="Who waits displaces who runs, if its level is lower")
def test_displaces():
    long = Arrival(0.0, 2, 9, 3)
    cases = {
        "a lower number": ([long, Arrival(2.0, 2, 2, 2)], {}, [[2.0, 0]]),
        "an equal number": ([long, Arrival(2.0, 2, 2, 3)], {}, []),
        "an equal number, due earlier": ([long, Arrival(2.0, 2, 2, 3, 4.0)], {}, []),
        "a higher number, due earlier": ([long, Arrival(2.0, 2, 2, 4, 4.0)], {}, []),
        "a lower number, and a place is free": ([long, Arrival(2.0, 2, 2, 2)], {"seats": 2}, []),
        "nobody": ([long], {}, []),
        "a lower number, and no room": (
            [long, Arrival(2.0, 12, 2, 2)],
            {"seats": 4, "room": 14},
            [[2.0, 0]],
        ),
        "an equal number, three levels up by then": (
            [replace(long, output=30), Arrival(2.0, 2, 2, 5)],
            {"patience": 4.0},
            [[14.0, 0]],
        ),
    }
    for name, (trace, more, wanted) in cases.items():
        expect(
            told(trace, Preempted, **more),
            wanted,
            call="[second, number] of everybody who is preempted, in a trace",
            given={
                "waits": name,
                "(arrival, prompt, output, priority)": [
                    (a.time, a.prompt, a.output, a.priority) for a in trace
                ],
                **more,
            },
            cause="only a lower level displaces, and only where the first cannot come in otherwise",
        )


@pytest.mark.check(task=8, points=3, title="One a step, of the highest level; the others run on")
def test_one_a_step():
    numbers = [1, 4, 0, 6, 4]
    trace = [Arrival(0.0, 4, 20, number) for number in numbers]
    trace += [Arrival(3.0, 30, 2, 1)]
    gone = told(trace, Preempted, seats=6, room=56)
    soon = [[when, number] for when, number in gone if when < 7.0]
    levels = [numbers[number] for _, number in soon]
    expect(
        [[when for when, _ in soon], levels],
        [[3.0, 4.0, 5.0], [6, 4, 4]],
        call="when somebody is displaced for request 5, and with which priority",
        given={"priorities of 0 to 4": numbers, "request 5": "30 + 2 of priority 1, at 3 s",
               "room": 56},
        cause="the highest level gives way first, one a step, until there is room; who has the "
        "level of request 5 or a lower one runs on",
    )  # fmt: skip
    seats = [Arrival(0.0, 2, 12, number) for number in (5, 8, 8, 2)]
    seats += [Arrival(2.0, 2, 6, 0), Arrival(2.0, 2, 6, 0), Arrival(2.0, 2, 6, 1)]
    gone = [[when, number] for when, number in told(seats, Preempted, seats=4) if when < 6.0]
    levels = [seats[number].priority for _, number in gone]
    expect(
        [[when for when, _ in gone], levels],
        [[2.0, 3.0, 4.0], [8, 8, 5]],
        call="the same where three of priorities 0, 0, 1 find four running, of 5, 8, 8, 2",
        cause="a place is enough for one; each step may free one more",
    )


@pytest.mark.check(task=8, points=3, title="Nobody starves: a bound for every number")
def test_starvation():
    for number, others, patience in ((3, 0, 10.0), (2, 2, 6.0), (9, 7, 5.0), (0, -3, 4.0)):
        bound = (number - others + 1) * patience
        stream = [Arrival(3.0 * i, 2, 3, others, 3.0 * i + 4.0) for i in range(40)]
        trace = [Arrival(0.0, 2, 5, number), *stream]
        run = simulate(trace, scheduler_of(patience=patience), A_SECOND)
        preempted = [e.time for e in run.events if isinstance(e, Preempted) and not e.request_id]
        first, last = run.timelines[0].token_times[0], run.timelines[0].token_times[-1]
        expect.that(
            bound - patience <= first - 1.0 <= bound + 1.0 and not preempted and last == first + 4,
            "it comes in when it has waited for its bound, and stays to its end",
            observed={"first token": first, "last token": last, "preempted": preempted},
            call=f"a request of priority {number} beside a stream of priority {others}, each with "
            "a deadline, of 3 s each and one every 3 s; one runs at a time",
            given={"patience": patience, "bound": f"({number} - {others} + 1) * {patience:g} s"},
            cause="after (p - q + 1) * patience in the queue its level is below that of whoever of "
            "number q comes; while it runs it keeps this level",
        )
    trace = [Arrival(0.0, 2, 4, 10**6), *(Arrival(0.0, 2, 4, 0) for _ in range(12))]
    run = simulate(trace, scheduler_of(patience=math.inf), A_SECOND)
    expect(
        max(range(13), key=lambda i: run.timelines[i].token_times[0]),
        0,
        call="who comes last with infinite patience, of one of priority 1,000,000 and twelve of 0",
        cause="then nobody ages, as in vLLM",
    )


@pytest.mark.check(task=8, points=2, title="No thrash: who was displaced comes back by its level")
def test_no_thrash():
    trace = [Arrival(0.0, 2, 40, 0), Arrival(0.0, 2, 40, 1)]
    expect(
        told(trace, Preempted, patience=8.0),
        [[16.0, 0], [32.0, 1], [48.0, 0], [64.0, 1]],
        call="[second, number] of everybody who is preempted: one of priority 0 and one of 1, of "
        "40 s each; one runs at a time",
        given={"patience": 8.0},
        cause="each displaces the other when its own level has become lower; equal levels do not, "
        "and whoever runs does not age",
    )
    trace = [Arrival(0.0, 2, 30, 1), *(Arrival(4.0 + 6 * i, 2, 2, 0) for i in range(4))]
    gone = told(trace, Preempted, patience=100.0)
    expect(
        gone,
        [[4.0 + 6 * i, 0] for i in range(4)],
        call="the same, where four short ones of priority 0 come, 6 s apart",
        cause="each displaces once, and who was displaced waits for its end",
    )


@pytest.mark.check(task=8, points=1, title="Questions change nothing")
def test_questions():
    policy = UrgentFirst(patience=10.0)
    batch = [new_request(i, priority) for i, priority in enumerate((3, 9, 1))]
    first, late, urgent = new_request(7, 2), new_request(8, 9), new_request(9, 0)
    found = []
    for _ in range(2):
        asked = ((first, batch), (urgent, batch), (late, batch), (first, []), (first, batch[2:]))
        for one, some in asked:
            gone = policy.displaced(one, some, 5.0)
            found.append(gone and gone.number)
        found.append(policy.displaced(late, batch, 25.0) is not None)
        found.append(policy.victim(iter(batch), 5.0).number)
    expect(
        found,
        [1, 1, None, None, None, False, 1] * 2,
        call="twice: whom requests of priority 2, 0 and 9 displace of a batch of 3, 9, 1; whom the "
        "first displaces of nobody, and of one of 1; whether one of 9 displaces after 25 s, when "
        "all have waited as long; the victim",
        cause="an answer depends on what is asked alone",
    )
    for wrong in (0.0, -1.0, math.nan):
        expect.raises(
            ConfigError,
            partial(UrgentFirst, patience=wrong),
            call=f"UrgentFirst(patience={wrong})",
        )
    made = make_policy("priority")
    expect(
        [type(made) is UrgentFirst, made.name, made.ages, made.reads_priority, made.reads_deadline],
        [True, "priority", True, True, True],
        call='whether make_policy("priority") is yours; its name, ages, reads_priority and '
        "reads_deadline",
    )
    two = [new_request(0, 1), new_request(1, 0, arrival=30.0)]
    expect(
        [min(two, key=lambda r: made.rank(r, now)).number for now in (59.0, 60.0)],
        [1, 0],
        call="who is first at 59 and at 60 s: one of priority 1 since 0 s, or one of 0 since 30 s",
        cause="patience is 60 s unless it is given",
    )


@pytest.mark.check(
    task=8, points=3, title="Random histories: every step as the contract says", stress=True
)
def test_random_histories(seed):
    for number in range(40):
        history = urgent_history(1000 * seed + number, tight=number % 2 == 1)
        if play(history).broken is None:
            continue
        history = shrunk(history)
        played = play(history)
        expect.that(
            False,
            "no rule of the contract is broken",
            observed=played.broken,
            call=str(history),
            given={"run": Replay(played.events).text()},
        )
