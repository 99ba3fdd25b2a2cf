"""One schema for recorded requests, whoever recorded them (given)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nanovllm.batching.traces import Arrival


@dataclass(frozen=True)
class TracedRequest:
    """A request of a trace: times in seconds from its first request, lengths in tokens.

    session: which conversation it belongs to, "" where nobody knows. blocks: names of the blocks
    of its prompt, in order, so that equal prefixes have equal names. ok: False where it failed.
    """

    time: float
    prompt: int
    output: int
    session: str = ""
    blocks: tuple[int, ...] = ()
    ok: bool = True


Trace = Sequence[TracedRequest]


def arrivals(trace: Trace) -> list[Arrival]:
    """The requests as lab 04's simulator takes them; an answer without tokens counts as one."""
    return [Arrival(r.time, r.prompt, max(r.output, 1)) for r in trace]


def faster(trace: Trace, factor: float) -> list[TracedRequest]:
    """The same requests in a shorter time: `factor` times as many a second.

    >>> [r.time for r in faster([TracedRequest(0.0, 1, 1), TracedRequest(8.0, 1, 1)], 4)]
    [0.0, 2.0]
    """
    return [replace(r, time=r.time / factor) for r in trace]


def between(trace: Trace, start: float, end: float) -> list[TracedRequest]:
    """The requests with start <= time < end, with times from `start` on.

    >>> [r.time for r in between([TracedRequest(t, 1, 1) for t in (0.0, 5.0, 9.0)], 5.0, 9.0)]
    [0.0]
    """
    return [replace(r, time=r.time - start) for r in trace if start <= r.time < end]
