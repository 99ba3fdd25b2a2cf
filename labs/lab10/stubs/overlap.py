"""A step in two halves: one computes while the other one's messages are under way."""

from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

from nanovllm.parallel.costs import ParallelCost, Phase


class Span(NamedTuple):
    """A phase of one half computes, or its message is under way, from `start` to `end`."""

    half: int
    phase: int
    kind: str  # "compute" or "communicate"
    start: float
    end: float


def halves(cost: ParallelCost, tokens: int, places: float) -> list[list[Phase]]:
    """The phases of the two halves of a step through one stage: two phases for each layer.

    There is a token at least. The first half has tokens / 2, rounded up, the second the rest;
    places are divided in the same proportion. One token cannot be divided: then there is one half,
    with everything.
    """
    raise NotImplementedError("lab10 task 7: halves")


def timeline(halves: Sequence[Sequence[Phase]]) -> list[Span]:
    """When a rank computes and sends what, if it can do both at once, but only one of each.

    The halves take turns: the first phase of each, then the second of each, and so on; computing
    and messages both keep that order. A phase computes when the rank has computed what comes
    before it, and the message of the phase before it in its own half has arrived. Its message goes
    when it is computed and the messages before it have arrived. One half alone is a step that is
    not divided. Halves may have different numbers of phases.

    Returns:
        Two spans for each phase, "compute" before "communicate", in the order of the turns.

    >>> [(s.start, s.end) for s in timeline([[Phase(2.0, 3.0)], [Phase(1.0, 3.0)]])]
    [(0.0, 2.0), (2.0, 5.0), (2.0, 3.0), (5.0, 8.0)]
    """
    raise NotImplementedError("lab10 task 7: timeline")


def exposed_seconds(spans: Sequence[Span]) -> float:
    """Seconds up to the end of the last span in which nothing is computed; 0 without spans.

    >>> exposed_seconds(timeline([[Phase(2.0, 3.0)], [Phase(1.0, 3.0)]]))
    5.0
    """
    raise NotImplementedError("lab10 task 7: exposed_seconds")


def seconds_saved(cost: ParallelCost, tokens: int, places: float) -> float:
    """How much sooner a stage is done with a step in two halves than with the whole step.

    Less than 0 where two halves take longer: each reads the weights, and pays the latencies.
    """
    whole = [[cost.phase(tokens, places)] * (2 * cost.layers)]
    before, after = (
        max((span.end for span in timeline(parts)), default=0.0)
        for parts in (whole, halves(cost, tokens, places))
    )
    return before - after
