"""Task 1: a request and its lifecycle."""

import pytest

from grader import expect
from nanovllm.batching.errors import IllegalTransitionError
from nanovllm.batching.request import Request, Status, may_follow
from nanovllm.batching.simulated import SimulatedSequence


def new_request(prompt=5, output=9, arrival=0.0):
    sequence = SimulatedSequence(0, prompt, output)
    return Request(0, sequence, arrival, limit=prompt + output - 1)


@pytest.mark.check(task=1, points=1, title="What may follow what")
def test_may_follow():
    allowed = {old.value: [new.value for new in Status if may_follow(old, new)] for old in Status}
    batch = ["preempted", "finished", "failed"]
    expect(
        allowed,
        {
            "waiting": ["scheduled", "finished", "failed"],
            "scheduled": ["running", *batch],
            "running": batch,
            "preempted": ["scheduled", "finished", "failed"],
            "finished": [],
            "failed": [],
        },
        call="may_follow(old, new) for all pairs of states",
        cause="a request comes into the batch as SCHEDULED, leaves it, and ends once",
    )


@pytest.mark.check(task=1, points=2, title="Illegal moves raise and change nothing")
def test_illegal_moves():
    request = new_request(arrival=2.0)
    request.move_to(Status.SCHEDULED, now=3.0)
    expect.raises(
        IllegalTransitionError,
        lambda: request.move_to(Status.WAITING, now=4.0),
        call="move_to(WAITING) of a scheduled request",
        cause="nothing becomes WAITING again: a preempted request is PREEMPTED",
    )
    expect(
        [request.status.value, request.entered, request.time_in(Status.WAITING, 4.0)],
        ["scheduled", 3.0, 1.0],
        call="status, entered and seconds waited after the refused move",
        cause="a refused move must leave the request as it was",
    )
    request.move_to(Status.FINISHED, now=5.0)
    for status in Status:
        expect.raises(
            IllegalTransitionError,
            lambda status=status: request.move_to(status, now=6.0),
            call=f"move_to({status.name}) of a finished request",
            cause="nothing follows the end",
        )


@pytest.mark.check(task=1, points=2, title="Time in each state adds up")
def test_time_in_states():
    request = new_request(arrival=10.0)
    moves = [("SCHEDULED", 14.0), ("RUNNING", 14.5), ("PREEMPTED", 16.0), ("SCHEDULED", 24.0)]
    moves += [("RUNNING", 24.25), ("PREEMPTED", 27.25), ("SCHEDULED", 28.0), ("RUNNING", 29.0)]
    seen = []
    for name, now in moves:
        request.move_to(Status[name], now)
        seen.append([request.time_in(status, now + 0.5) for status in Status])
    expect(
        seen,
        [
            [4.0, 0.5, 0.0, 0.0, 0.0, 0.0],
            [4.0, 0.5, 0.5, 0.0, 0.0, 0.0],
            [4.0, 0.5, 1.5, 0.5, 0.0, 0.0],
            [4.0, 1.0, 1.5, 8.0, 0.0, 0.0],
            [4.0, 0.75, 2.0, 8.0, 0.0, 0.0],
            [4.0, 0.75, 4.5, 8.5, 0.0, 0.0],
            [4.0, 1.25, 4.5, 8.75, 0.0, 0.0],
            [4.0, 1.75, 5.0, 8.75, 0.0, 0.0],
        ],
        call="time_in(status) of the six states, half a second after each move",
        given={"arrival": 10.0, "moves": moves},
        cause="a state's time is that of all stays in it, the present one included",
    )
    expect(request.waited(29.5), 12.75, call="waited(29.5): waiting and preempted together")
    request.move_to(Status.FINISHED, 31.0)
    expect(
        request.time_in(Status.FINISHED, 33.0),
        2.0,
        call="time_in(FINISHED, 33.0) of a request that ended at 31.0",
        cause="the end is a state like the others",
    )


@pytest.mark.check(task=1, points=1, title="Computed tokens chase the total")
def test_remaining():
    request = new_request(prompt=5)
    seen = [request.remaining]
    for computed, tokens in ((3, 0), (5, 1), (6, 1), (6, 3), (0, 3)):
        while len(request.sequence.output_token_ids) < tokens:
            request.sequence.append()
        request.num_computed_tokens = computed
        seen.append(request.remaining)
    expect(
        seen,
        [5, 2, 1, 0, 2, 8],
        call="remaining: new; 3 of 5 computed; 1 token drawn; it computed; 2 more; preempted",
        cause="output tokens have to be computed too, after a preemption all of them",
    )
