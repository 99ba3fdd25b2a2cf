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
    raise NotImplementedError("lab13 task 2: gaps")


def variation(values: Sequence[float]) -> float:
    """Coefficient of variation: standard deviation (of the population) over mean; 0 without spread.

    >>> variation([1.0, 3.0])
    0.5
    """
    raise NotImplementedError("lab13 task 2: variation")


def counts(times: Sequence[float], window: float) -> list[int]:
    """Arrivals in each window [0, w), [w, 2w), ... up to the one with the last arrival.

    >>> counts([0.0, 0.5, 3.0], 1.0)
    [2, 0, 0, 1]
    """
    raise NotImplementedError("lab13 task 2: counts")


def peak_to_mean(times: Sequence[float], window: float) -> float:
    """Arrivals in the fullest window over those in a mean one, windows without any included.

    >>> peak_to_mean([0.0, 0.5, 3.0], 1.0)
    2.6666666666666665
    """
    raise NotImplementedError("lab13 task 2: peak_to_mean")


def dispersion(times: Sequence[float], window: float) -> float:
    """Index of dispersion: variance (of the population) of `counts` over their mean.

    1 for Poisson arrivals, whatever the window.

    >>> dispersion([0.0, 0.5, 3.0], 1.0)
    0.9166666666666666
    """
    raise NotImplementedError("lab13 task 2: dispersion")


def ccdf(values: Sequence[float]) -> list[tuple[float, float]]:
    """For each different value, smallest first, the share of values that are larger.

    >>> ccdf([5.0, 1.0, 1.0, 2.0])
    [(1.0, 0.5), (2.0, 0.25), (5.0, 0.0)]
    """
    raise NotImplementedError("lab13 task 2: ccdf")


def top_share(values: Sequence[float], share: float) -> float:
    """Which part of the sum the largest `share` of the values has; so many, rounded up.

    >>> top_share([1.0, 1.0, 2.0, 6.0], 0.25)
    0.6
    """
    raise NotImplementedError("lab13 task 2: top_share")


def session_growth(trace: Trace) -> list[float]:
    """Mean prompt of the first, second, third ... requests of sessions; "" is no session.

    The trace is in order of time.

    >>> from nanovllm.observability.trace import TracedRequest
    >>> turns = [(0.0, 10, "a"), (1.0, 20, "b"), (2.0, 50, "a"), (3.0, 99, "")]
    >>> session_growth([TracedRequest(t, prompt, 1, session) for t, prompt, session in turns])
    [15.0, 50.0]
    """
    raise NotImplementedError("lab13 task 2: session_growth")


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
    raise NotImplementedError("lab13 task 2: prefix_hits")
