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
    ### BEGIN SOLUTION
    right = min(bisect_right(marks, share), len(marks) - 1)
    left = right - 1
    step = (share - marks[left]) / (marks[right] - marks[left])
    return values[left] * (values[right] / values[left]) ** step
    ### END SOLUTION


def stratified(count: int, draw: random.Random) -> list[float]:
    """`count` numbers in [0, 1), one in each of `count` equal parts, in random order.

    So the rare end of a distribution is there in every trace as often as it should be.

    >>> sorted(int(4 * u) for u in stratified(4, random.Random(1)))
    [0, 1, 2, 3]
    """
    ### BEGIN SOLUTION
    places = [(i + draw.random()) / count for i in range(count)]
    draw.shuffle(places)
    return places
    ### END SOLUTION


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
    ### BEGIN SOLUTION
    if not shape.burst_tail:
        return [1] * count
    sizes, left = [], count
    for u in stratified(count, draw):
        size = int((1 - u) ** (-1 / shape.burst_tail))
        sizes.append(min(size, shape.burst_most, left))
        left -= sizes[-1]
        if left <= 0:
            break
    return sizes
    ### END SOLUTION


def parts(total: float, count: int, draw: random.Random) -> list[float]:
    """`count` exponential lengths, stratified, scaled so that they add up to `total`.

    >>> round(sum(parts(90.0, 7, random.Random(1))), 6)
    90.0
    """
    ### BEGIN SOLUTION
    lengths = [-math.log(1 - u) for u in stratified(count, draw)]
    return [total * length / sum(lengths) for length in lengths]
    ### END SOLUTION


def arrival_times(shape: Shape, count: int, seconds: float, draw: random.Random) -> list[float]:
    """When `count` requests arrive within `seconds`, in order.

    The time has round(seconds * pause_share / pause_mean) pauses, at least one, that last
    pause_share of it, and one stretch more than pauses in which requests come; `parts` makes the
    lengths of both. Bursts (`burst_sizes`) begin at random moments of the busy time, with the rate
    1 + swing * sin(2 pi t / cycle_seconds) at its moment t. The requests of a burst follow one
    another in busy time by exponential gaps of mean burst_gap; what runs past the end may stay
    there. Pauses then move what comes after them; bundles cut the result down.
    """
    ### BEGIN SOLUTION
    busy = seconds * (1 - shape.pause_share)
    pauses = (
        max(1, round(seconds * shape.pause_share / shape.pause_mean)) if shape.pause_mean else 0
    )
    silent = parts(seconds * shape.pause_share, pauses, draw)
    ends = list(accumulate(parts(busy, pauses + 1, draw)))
    times: list[float] = []
    for size in burst_sizes(shape, count, draw):
        now = _on_cycle(shape, busy, draw)
        for _ in range(size):
            before = min(bisect_right(ends, now), pauses)
            times.append(now + sum(silent[:before]))
            now += draw.expovariate(1 / shape.burst_gap) if shape.burst_gap else 0.0
    if shape.bundle:
        times = [time // shape.bundle * shape.bundle for time in times]
    return sorted(times)
    ### END SOLUTION


### BEGIN SOLUTION
def _on_cycle(shape: Shape, busy: float, draw: random.Random) -> float:
    """A moment of the busy time, drawn with the rate of the cycle."""
    while True:
        time = draw.random() * busy
        rate = 1 + shape.swing * math.sin(2 * math.pi * time / shape.cycle_seconds)
        if draw.random() * (1 + shape.swing) < rate:
            return time


### END SOLUTION


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
    ### BEGIN SOLUTION
    open_turns: list[TracedRequest] = []  # the last request of each session, by time
    common = tuple(range(shape.common))
    blocks, sessions, found = count(shape.common), count(), []
    for request in requests:
        size = -(-request.prompt // shape.block)
        before = None
        if draw.random() < shape.follow_share:
            due = request.time - draw.expovariate(1 / shape.think)
            place = bisect_right(open_turns, due, key=lambda turn: turn.time)
            fits = (
                i
                for i in range(place - 1, -1, -1)
                if open_turns[i].prompt + open_turns[i].output <= request.prompt
            )
            chosen = next(fits, None)
            before = None if chosen is None else open_turns.pop(chosen)
        kept = before.blocks[:-1] if before and len(before.blocks) > shape.common else common[:size]
        chain = (*kept, *(next(blocks) for _ in range(size - len(kept))))
        session = before.session if before else str(next(sessions))
        found.append(replace(request, session=session, blocks=chain))
        open_turns.append(found[-1])
    return found
    ### END SOLUTION


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
