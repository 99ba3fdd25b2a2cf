"""What a trace is like: arrivals, lengths, sessions, and what a prefix cache can reach."""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from math import ceil, sqrt

from nanovllm.observability.trace import Trace


def gaps(times: Sequence[float]) -> list[float]:
    """Seconds between one arrival and the next; times are in order.

    >>> gaps([0.0, 1.0, 4.0])
    [1.0, 3.0]
    """
    ### BEGIN SOLUTION
    return [later - earlier for earlier, later in pairwise(times)]
    ### END SOLUTION


def variation(values: Sequence[float]) -> float:
    """Coefficient of variation: standard deviation (of the population) over mean; 0 without spread.

    >>> variation([1.0, 3.0])
    0.5
    """
    ### BEGIN SOLUTION
    mean = sum(values) / len(values)
    spread = sqrt(sum((value - mean) ** 2 for value in values) / len(values))
    return spread / mean if spread else 0.0
    ### END SOLUTION


def counts(times: Sequence[float], window: float) -> list[int]:
    """Arrivals in each window [0, w), [w, 2w), ... up to the one with the last arrival.

    >>> counts([0.0, 0.5, 3.0], 1.0)
    [2, 0, 0, 1]
    """
    ### BEGIN SOLUTION
    found = Counter(int(time // window) for time in times)
    return [found[i] for i in range(max(found) + 1)]
    ### END SOLUTION


def peak_to_mean(times: Sequence[float], window: float) -> float:
    """Arrivals in the fullest window over those in a mean one, windows without any included.

    >>> peak_to_mean([0.0, 0.5, 3.0], 1.0)
    2.6666666666666665
    """
    ### BEGIN SOLUTION
    found = counts(times, window)
    return max(found) * len(found) / sum(found)
    ### END SOLUTION


def dispersion(times: Sequence[float], window: float) -> float:
    """Index of dispersion: variance (of the population) of `counts` over their mean.

    1 for Poisson arrivals, whatever the window.

    >>> dispersion([0.0, 0.5, 3.0], 1.0)
    0.9166666666666666
    """
    ### BEGIN SOLUTION
    found = counts(times, window)
    mean = sum(found) / len(found)
    return sum((count - mean) ** 2 for count in found) / len(found) / mean
    ### END SOLUTION


def ccdf(values: Sequence[float]) -> list[tuple[float, float]]:
    """For each different value, smallest first, the share of values that are larger.

    >>> ccdf([5.0, 1.0, 1.0, 2.0])
    [(1.0, 0.5), (2.0, 0.25), (5.0, 0.0)]
    """
    ### BEGIN SOLUTION
    found, left, points = Counter(values), len(values), []
    for value in sorted(found):
        left -= found[value]
        points.append((value, left / len(values)))
    return points
    ### END SOLUTION


def top_share(values: Sequence[float], share: float) -> float:
    """Which part of the sum the largest `share` of the values has; so many, rounded up.

    >>> top_share([1.0, 1.0, 2.0, 6.0], 0.25)
    0.6
    """
    ### BEGIN SOLUTION
    largest = sorted(values, reverse=True)[: ceil(share * len(values) * (1 - 1e-12))]
    return sum(largest) / sum(values)
    ### END SOLUTION


def session_growth(trace: Trace) -> list[float]:
    """Mean prompt of the first, second, third ... requests of sessions; "" is no session.

    The trace is in order of time.

    >>> from nanovllm.observability.trace import TracedRequest
    >>> turns = [(0.0, 10, "a"), (1.0, 20, "b"), (2.0, 50, "a"), (3.0, 99, "")]
    >>> session_growth([TracedRequest(t, prompt, 1, session) for t, prompt, session in turns])
    [15.0, 50.0]
    """
    ### BEGIN SOLUTION
    turn: Counter[str] = Counter()
    prompts: list[list[int]] = []
    for request in trace:
        if request.session:
            if turn[request.session] == len(prompts):
                prompts.append([])
            prompts[turn[request.session]].append(request.prompt)
            turn[request.session] += 1
    return [sum(lengths) / len(lengths) for lengths in prompts]
    ### END SOLUTION


def prefix_hits(trace: Trace, capacity: int | None = None) -> tuple[int, int]:
    """(blocks that a prefix cache would have, all blocks) of the prompts, in order of the trace.

    Of a prompt, blocks count as hits up to its first miss. Then all of its blocks have been used
    just now, its last before its first: when more than `capacity` are kept, the least recently
    used go, so a prompt loses its end before its beginning. None: all are kept; 0: none.

    >>> from nanovllm.observability.trace import TracedRequest
    >>> chains = [(1, 2, 3), (1, 2, 9, 3)]
    >>> trace = [TracedRequest(i, 1, 1, blocks=chain) for i, chain in enumerate(chains)]
    >>> prefix_hits(trace), prefix_hits(trace, 1)
    ((2, 7), (1, 7))
    """
    ### BEGIN SOLUTION
    kept: OrderedDict[int, None] = OrderedDict()  # the least recently used first
    hits = total = 0
    for request in trace:
        total += len(request.blocks)
        for block in request.blocks:
            if block not in kept:
                break
            hits += 1
        for block in reversed(request.blocks):
            kept[block] = None
            kept.move_to_end(block)
        while capacity is not None and len(kept) > capacity:
            kept.popitem(last=False)
    return hits, total
    ### END SOLUTION
