"""Task 2: who goes first, and who must give way."""

import math

import pytest

from grader import expect
from nanovllm.batching.policies import (
    EarliestDeadline,
    FirstComeFirstServed,
    PriorityWithAging,
    RoundRobin,
    ShortestJobFirst,
    SizeQueues,
)
from nanovllm.batching.request import Priority, Request, Status
from nanovllm.batching.simulated import SimulatedSequence


def new_request(number, prompt=4, output=8, arrival=0.0, priority=Priority.NORMAL):
    sequence = SimulatedSequence(number, prompt, output)
    return Request(number, sequence, arrival, prompt + output - 1, priority)


def in_order(policy, requests, now):
    return [r.number for r in sorted(requests, key=lambda r: policy.rank(r, now))]


@pytest.mark.check(task=2, points=1, title="Ties are broken by arrival, then by number")
def test_ties(rng):
    policy = ShortestJobFirst()
    shapes = [(5, 3.0), (5, 1.0), (2, 4.0), (5, 1.0), (2, 0.5), (7, 0.0)]
    requests = [new_request(i, prompt, 1, arrival) for i, (prompt, arrival) in enumerate(shapes)]
    for _ in range(3):
        shuffled = [requests[i] for i in rng.permutation(len(requests))]
        ranks = [list(policy.rank(request, now=9.0)) for request in requests]
        expect(
            ranks,
            [[5, 3.0, 0], [5, 1.0, 1], [2, 4.0, 2], [5, 1.0, 3], [2, 0.5, 4], [7, 0.0, 5]],
            call="rank of six requests under shortest job first: (work, arrival, number)",
            given={"(work, arrival)": shapes},
            cause="equal keys go by arrival, equal arrivals by number",
        )
        expect(in_order(policy, shuffled, 9.0), [4, 2, 1, 3, 0, 5], call="the order by rank")


@pytest.mark.check(task=2, points=1, title="Shortest job: the work that is left")
def test_shortest_job():
    request = new_request(0, prompt=30, output=11)
    seen = []
    for computed in (0, 25, 38):
        request.num_computed_tokens = computed
        seen.append(ShortestJobFirst().key(request, now=5.0))
    expect(
        seen,
        [40, 15, 2],
        call="ShortestJobFirst().key with 0, 25, 38 of at most 40 tokens computed",
        cause="the work left is the limit minus what is computed",
    )


@pytest.mark.check(task=2, points=1, title="Round robin: a turn is so many generated tokens")
def test_round_robin():
    policy, request = RoundRobin(quantum=3), new_request(0, prompt=9, output=20, arrival=1.0)
    seen = []
    for turn_start in (0, 3):  # the second turn begins with 3 tokens, all to be computed again
        request.turn_start = turn_start
        request.num_computed_tokens = 0
        for _ in range(4):
            seen.append(policy.turn_is_over(request))
            request.num_computed_tokens = request.num_tokens
            request.sequence.append()
        del request.sequence.output_token_ids[3:]
    expect(
        seen,
        [False, False, False, True] * 2,
        call="turn_is_over with 0, 1, 2, 3 tokens generated in a turn of quantum 3, twice",
        cause="a turn counts the tokens generated since it began, not those of earlier turns and "
        "not the prompt's",
    )
    keys = [policy.key(request, now=50.0)]
    for status, now in ((Status.SCHEDULED, 7.0), (Status.RUNNING, 8.0), (Status.PREEMPTED, 9.5)):
        request.move_to(status, now)
        keys.append(policy.key(request, now=50.0))
    expect(
        keys,
        [1.0, 7.0, 8.0, 9.5],
        call="key: in the queue since 1.0; admitted 7.0; running 8.0; preempted 9.5",
        cause="who was preempted queues up anew, behind those who have waited longer",
    )


@pytest.mark.check(task=2, points=2, title="Priority: class, aging, size")
def test_priority_score():
    policy = PriorityWithAging()
    seen, minutes = [], (0, 1.5, 6, 12, 300)
    for priority in Priority:
        request = new_request(0, prompt=60, output=21, arrival=30.0, priority=priority)
        seen.append([policy.score(request, 30.0 + 60 * m) for m in minutes])
    expect(
        seen,
        [
            [-0.84, -0.84, -0.84, -0.84, -0.84],
            [0.16, 0.01, -0.44, -0.84, -0.84],
            [1.16, 1.01, 0.56, -0.04, -0.84],
        ],
        call="score of a high, normal, low request of 80 tokens after 0, 1.5, 6, 12, 300 minutes",
        cause="-1, 0 or 1, less 1 for 10 minutes, parts too, down to -1; and 1 more for 500 tokens",
    )
    request = new_request(0, prompt=60, output=21)
    for status, now in ((Status.SCHEDULED, 60.0), (Status.RUNNING, 61.0), (Status.PREEMPTED, 600)):
        request.move_to(status, now)
    request.num_computed_tokens = 30
    expect(
        policy.score(request, 720.0),
        -3 / 10 + 50 / 500,
        call="score with 30 of 80 tokens computed, 1 minute waiting, 9 running, 2 preempted",
        cause="only minutes in the queue count, before and after a preemption; size is work left",
    )
    other, numbers = PriorityWithAging(patience=80.0, size=64.0), (0, 4, -7)
    requests = [new_request(0, 60, 21, priority=number) for number in numbers]
    expect(
        [[other.score(request, now) for now in (0.0, 60.0, 900.0)] for request in requests],
        [[1.25, 0.5, 0.25], [5.25, 4.5, 0.25], [-5.75, -5.75, -5.75]],
        call="score of requests of 80 tokens after 0, 60, 900 s, with a patience of 80 s and a "
        "size of 64 tokens",
        given={"priorities": numbers},
        cause="any integer is a priority; waiting lowers it to -1 at most; prices are settings",
    )


@pytest.mark.check(task=2, points=1, title="The lowest score goes first")
def test_priority_order():
    policy = PriorityWithAging()
    requests = [
        new_request(0, priority=Priority.LOW, arrival=0.0),
        new_request(1, priority=Priority.NORMAL, arrival=1.0),
        new_request(2, priority=Priority.HIGH, arrival=2.0),
        new_request(3, prompt=400, priority=Priority.NORMAL, arrival=0.0),
    ]
    expect(
        sorted(range(4), key=lambda i: policy.key(requests[i], 3.0)),
        [2, 1, 3, 0],
        call="the order of a low, a normal, a high, and a long normal request by key",
        cause="the class counts more than a few seconds or tokens",
    )
    expect(
        sorted(range(4), key=lambda i: policy.key(requests[i], 3600.0)),
        [0, 1, 2, 3],
        call="the order of a low, a normal, a high, and a long normal request by key, an hour "
        "later: all classes have reached -1, only size differs",
    )


@pytest.mark.check(task=2, points=2, title="Three queues by size, and the way up")
def test_size_queues():
    policy = SizeQueues(small=20, medium=60, patience=10.0)
    sizes = (1, 20, 21, 60, 61, 500)
    requests = [new_request(i, prompt=size, output=1) for i, size in enumerate(sizes)]
    for request in requests:
        request.num_computed_tokens = min(10, request.limit)  # size is not what is left
    expect(
        [[policy.key(r, now) for r in requests] for now in (0.0, 9.9, 10.0, 19.0, 20.0, 95.0)],
        [
            [0, 0, 1, 1, 2, 2],
            [0, 0, 1, 1, 2, 2],
            [0, 0, 0, 0, 1, 1],
            [0, 0, 0, 0, 1, 1],
            [0, 0, 0, 0, 0, 0],
            [0, 0, 0, 0, 0, 0],
        ],
        call="key of requests of 1, 20, 21, 60, 61, 500 tokens after 0, 9.9, 10, 19, 20, 95 s",
        given={"small": 20, "medium": 60, "patience": 10.0},
        cause="up to small is queue 0, up to medium 1; nobody rises above queue 0",
    )
    request, keys = new_request(0, prompt=500, output=1), []
    for status, now in ((Status.SCHEDULED, 6.0), (Status.RUNNING, 7.0), (Status.PREEMPTED, 60.0)):
        request.move_to(status, now)
        keys.append(policy.key(request, now + 3.0))
    keys += [policy.key(request, 64.0), policy.key(request, 75.0)]
    expect(
        keys,
        [2, 2, 2, 1, 0],
        call="key of a request of 500 tokens that waited 6 s, ran from 6 to 60, and was preempted: "
        "at 9, 10, 63, 64, 75 s",
        cause="the seconds in the queue count, before and after a preemption, and no others",
    )


@pytest.mark.check(task=2, points=1, title="The victim is the one that would come last")
def test_victim():
    sizes, arrivals = (50, 9, 30, 50), (2.0, 4.0, 1.0, 2.0)
    requests = [
        new_request(i, prompt=size, arrival=arrival)
        for i, (size, arrival) in enumerate(zip(sizes, arrivals, strict=True))
    ]
    expect(
        [p.victim(requests, 9.0).number for p in (FirstComeFirstServed(), ShortestJobFirst())],
        [1, 3],
        call="victim under first come first served, and under shortest job first",
        given={"prompts": sizes, "arrivals": arrivals},
        cause="whoever has the last rank: the latest, or the longest (of two the later one)",
    )


@pytest.mark.check(task=2, points=1, title="The earliest deadline; without one, last")
def test_deadline():
    due = (9.0, math.inf, 4.0, 9.0, math.inf)
    requests = [new_request(i, arrival=float(5 - i)) for i in range(5)]
    for request, deadline in zip(requests, due, strict=True):
        request.deadline = deadline
    policy = EarliestDeadline()
    expect(
        [in_order(policy, requests, 1.0), policy.victim(requests, 1.0).number],
        [[2, 3, 0, 4, 1], 1],
        call="the order of five requests by rank, and the victim",
        given={"(deadline, arrival)": [(r.deadline, r.arrival) for r in requests]},
        cause="what is due first goes first; equal deadlines go by arrival",
    )
