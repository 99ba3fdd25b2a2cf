"""The events of a step, made of requests and plans (given).

`now` is the time that an event carries.
"""

from nanovllm.batching.events import (
    Aborted,
    Admitted,
    ChunkRun,
    EngineEvent,
    Failed,
    Preempted,
    Queued,
    Stepped,
)
from nanovllm.batching.interface import SchedulerInterface
from nanovllm.batching.plan import Plan
from nanovllm.batching.request import Request
from nanovllm.generation.events import Prefilled


def queued(request: Request) -> Queued:
    """A new request is in the queue, since it arrived.

    >>> from nanovllm.batching.simulated import SimulatedSequence
    >>> queued(Request(0, SimulatedSequence(7, 5, 9), arrival=1.5, limit=13))
    Queued(request_id=7, index=0, time=1.5)
    """
    return Queued(request.sequence.request_id, request.sequence.index, request.arrival)


def moves(plan: Plan, now: float) -> list[EngineEvent]:
    """Preempted for each that left the batch, then Admitted for each that came into it."""
    left = [Preempted(r.sequence.request_id, r.sequence.index, now) for r in plan.preempted]
    came = [Admitted(r.sequence.request_id, r.sequence.index, now) for r in plan.admitted]
    return [*left, *came]


def prefilled(request: Request, now: float) -> list[EngineEvent]:
    """Prefilled if this is sample 0 and has no token of output yet, else nothing.

    >>> from nanovllm.batching.simulated import SimulatedSequence
    >>> request = Request(0, SimulatedSequence(7, 5, 9), arrival=1.5, limit=13)
    >>> prefilled(request, now=2.0)
    [Prefilled(request_id=7, num_tokens=5, time=2.0)]
    >>> request.sequence.append()
    >>> prefilled(request, now=3.0)
    []
    """
    sequence = request.sequence
    if sequence.output_token_ids or sequence.index != 0:
        return []
    return [Prefilled(sequence.request_id, len(sequence.prompt_token_ids), now)]


def aborted(request: Request, now: float) -> Aborted:
    """A request was given up; with its tokens and its text."""
    sequence = request.sequence
    tokens = tuple(sequence.output_token_ids)
    return Aborted(sequence.request_id, sequence.index, tokens, sequence.text, now)


def failed(request: Request, error: Exception, now: float) -> Failed:
    """A request ended by this error."""
    return Failed(request.sequence.request_id, request.sequence.index, error, now)


def stepped(
    plan: Plan, scheduler: SchedulerInterface, running: int, started: float, now: float
) -> Stepped:
    """A step is over. running: how many were in the batch before anybody ended."""
    return Stepped(
        chunks=tuple(
            ChunkRun(c.request.sequence.request_id, c.request.sequence.index, c.start, c.length)
            for c in plan.chunks
        ),
        running=running,
        waiting=len(scheduler.waiting),
        budget=plan.budget,
        free_tokens=scheduler.store.free_tokens,
        started=started,
        time=now,
    )
