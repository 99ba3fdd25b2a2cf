"""Made-up traces of real shape: lengths from quantiles, arrivals in bursts, pauses and cycles."""

import math
import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, count

from nanovllm.observability.errors import TraceError
from nanovllm.observability.shapes import MARKS, Shape
from nanovllm.observability.trace import TracedRequest


def at(values: Sequence[float], share: float, marks: Sequence[float] = MARKS) -> float:
    """The quantile of a share, 0 <= share <= 1: between two marks it grows by equal factors.

    Values are above 0. Half way between 10 and 40 it is 20.

    >>> round(at((1, 10, 40), 0.75, marks=(0.0, 0.5, 1.0)), 6)
    20.0
    """
    raise NotImplementedError("lab13 task 1: at")


def stratified(count: int, draw: random.Random) -> list[float]:
    """`count` numbers in [0, 1), one in each of `count` equal parts, in random order.

    So the rare end of a distribution is there in every trace as often as it should be.

    >>> sorted(int(4 * u) for u in stratified(4, random.Random(1)))
    [0, 1, 2, 3]
    """
    raise NotImplementedError("lab13 task 1: stratified")


def burst_sizes(shape: Shape, count: int, draw: random.Random) -> list[int]:
    """Sizes of bursts that add up to `count`; of them, a share k ** -burst_tail has k or more.

    A draw that is larger than burst_most counts as burst_most; the last burst is cut to what is
    left of `count`. Without a tail all are 1.

    >>> from nanovllm.observability.shapes import AZURE_CODE, AZURE_CONVERSATION
    >>> burst_sizes(AZURE_CONVERSATION, 3, random.Random(1))
    [1, 1, 1]
    >>> sum(burst_sizes(AZURE_CODE, 1000, random.Random(1)))
    1000
    """
    raise NotImplementedError("lab13 task 1: burst_sizes")


def parts(total: float, count: int, draw: random.Random) -> list[float]:
    """`count` exponential lengths, stratified, scaled so that they add up to `total`.

    >>> round(sum(parts(90.0, 7, random.Random(1))), 6)
    90.0
    """
    raise NotImplementedError("lab13 task 1: parts")


def arrival_times(shape: Shape, count: int, seconds: float, draw: random.Random) -> list[float]:
    """When `count` requests arrive within `seconds`, in order.

    The time has round(seconds * pause_share / pause_mean) pauses, at least one, that last
    pause_share of it, and one stretch more than pauses in which requests come; `parts` makes the
    lengths of both. Bursts (`burst_sizes`) begin at random moments of the busy time, with the rate
    1 + swing * sin(2 pi t / cycle_seconds) at its moment t. The requests of a burst follow one
    another in busy time by exponential gaps of mean burst_gap; what runs past the end may stay
    there. Pauses then move what comes after them; bundles cut the result down.
    """
    raise NotImplementedError("lab13 task 1: arrival_times")


def with_sessions(
    shape: Shape, requests: Sequence[TracedRequest], draw: random.Random
) -> list[TracedRequest]:
    """The same requests, in order, as turns of sessions, with the blocks of their prompts.

    A request of `prompt` tokens has one block for each `block` tokens, rounded up; the first
    `common` of them are the same in all (blocks 0, 1, ...: a system prompt). With
    probability follow_share it goes on with a session: of those whose last prompt and answer fit
    into its prompt, with one that has waited for the time drawn (exponential, mean `think`, anew
    for each request) or longer, where there is one; with which of several is free. Its blocks begin
    with those of the last prompt, but for the last block of it, full or not (the common ones stay);
    all others are new. Else it begins a session.

    >>> from dataclasses import replace
    >>> from nanovllm.observability.shapes import MOONCAKE
    >>> turns = [TracedRequest(0.0, 600, 9), TracedRequest(9e9, 1500, 9)]
    >>> always = replace(MOONCAKE, follow_share=1.0)
    >>> [(r.session, r.blocks) for r in with_sessions(always, turns, random.Random(1))]
    [('0', (0, 1)), ('0', (0, 2, 3))]
    """
    raise NotImplementedError("lab13 task 1: with_sessions")


def generate(
    shape: Shape, seconds: float, seed: int = 0, rate: float | None = None
) -> list[TracedRequest]:
    """A trace of this shape: `seconds` long, the same for the same arguments.

    rate: requests a second in place of the shape's own. Raises TraceError where that makes none.
    """
    size = round(seconds * (shape.rate if rate is None else rate))
    if size < 1:
        raise TraceError(f"{seconds} seconds at {rate or shape.rate} requests a second make none.")
    draw = random.Random(seed)
    times = arrival_times(shape, size, seconds, draw)
    prompts = [round(at(shape.prompts, u)) for u in stratified(size, draw)]
    outputs = [round(at(shape.outputs, u)) for u in stratified(size, draw)]
    requests = [
        TracedRequest(time - times[0], prompt, output)
        for time, prompt, output in zip(times, prompts, outputs, strict=True)
    ]
    return with_sessions(shape, requests, draw) if shape.follow_share else requests
