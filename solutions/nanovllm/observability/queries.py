"""What Prometheus computes from scraped counters and histograms, by hand."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from nanovllm.observability.series import Sample, Series


def increase(samples: Sequence[Sample], at: float, window: float) -> float | None:
    """How much a counter grew in [at - window, at], as Prometheus 2 says; None: under two samples.

    A value smaller than the one before it is a counter that began anew from 0. The growth from
    the first sample in the window to the last one is stretched to the window, at either end by the
    time to its border. A counter cannot have been below 0: the time at the beginning is first cut
    to that in which it would have grown from 0 to the first value. What is then not less than 1.1
    mean intervals between samples becomes half an interval.

    >>> increase([Sample(10.0, 5.0), Sample(20.0, 7.0), Sample(30.0, 1.0)], at=30.0, window=20.0)
    3.0
    """
    ### BEGIN SOLUTION
    inside = [sample for sample in samples if at - window <= sample.time <= at]
    if len(inside) < 2:
        return None
    first, last = inside[0], inside[-1]
    grown = last.value - first.value
    for before, after in pairwise(inside):
        if after.value < before.value:
            grown += before.value
    lasted = last.time - first.time
    interval = lasted / (len(inside) - 1)
    to_start, to_end = first.time - (at - window), at - last.time
    if grown > 0 and first.value >= 0:
        to_start = min(to_start, lasted * first.value / grown)
    reach = lasted
    for gap in (to_start, to_end):
        reach += gap if gap < 1.1 * interval else interval / 2
    return grown * reach / lasted
    ### END SOLUTION


def rate(samples: Sequence[Sample], at: float, window: float) -> float | None:
    """`increase` a second.

    >>> rate([Sample(10.0, 5.0), Sample(20.0, 7.0), Sample(30.0, 1.0)], at=30.0, window=20.0)
    0.15
    """
    ### BEGIN SOLUTION
    grown = increase(samples, at, window)
    return None if grown is None else grown / window
    ### END SOLUTION


def sum_rates(
    series: Sequence[Series], at: float, window: float, by: Sequence[str] = ()
) -> dict[tuple[str, ...], float]:
    """`sum by (...) (rate(...))`: rates of the series, added up where these labels are equal.

    A missing label counts as "". Series without a rate are left out, and so are groups of only
    these.

    >>> two = [Series({"le": "1"}, [Sample(0.0, 0.0), Sample(10.0, 5.0)])] * 2
    >>> sum_rates(two, at=10.0, window=10.0, by=["le"])
    {('1',): 1.0}
    """
    ### BEGIN SOLUTION
    found: dict[tuple[str, ...], float] = {}
    for one in series:
        value = rate(one.samples, at, window)
        if value is not None:
            key = tuple(one.labels.get(name, "") for name in by)
            found[key] = found.get(key, 0.0) + value
    return found
    ### END SOLUTION


def histogram_quantile(q: float, buckets: Mapping[str, float]) -> float:
    """Prometheus' estimate of a quantile; `buckets` are cumulative counts or rates by their `le`.

    The observation of rank q * all lies in the first bucket that has so many; within it, on a
    straight line from the bucket below, or from 0. In the bucket +Inf it is the highest finite
    edge; in a lowest bucket whose edge is not above 0, that edge. A count smaller than that of a
    bucket below is raised to it. NaN: no bucket +Inf, fewer than two buckets, no observations,
    q is NaN, or the rank is 0 and the lowest bucket empty, with an edge above 0. q below 0 gives
    -inf, above 1 +inf.

    >>> histogram_quantile(0.5, {"0.1": 2, "0.5": 6, "+Inf": 6})
    0.2
    """
    ### BEGIN SOLUTION
    if math.isnan(q):
        return math.nan
    if not 0 <= q <= 1:
        return math.inf if q > 1 else -math.inf
    ordered = sorted((float(le), count) for le, count in buckets.items())
    if len(ordered) < 2 or ordered[-1][0] != math.inf:
        return math.nan
    edges, totals, highest = [], [], 0.0
    for edge, count in ordered:
        highest = max(highest, count)
        edges.append(edge)
        totals.append(highest)
    if totals[-1] == 0:
        return math.nan
    rank = q * totals[-1]
    place = next(i for i, total in enumerate(totals) if total >= rank or i == len(totals) - 1)
    if place == len(edges) - 1:
        return edges[-2]
    if place == 0 and edges[0] <= 0:
        return edges[0]
    low, below = (edges[place - 1], totals[place - 1]) if place else (0.0, 0.0)
    inside = totals[place] - below
    return low + (edges[place] - low) * ((rank - below) / inside) if inside else math.nan
    ### END SOLUTION


def quantile_over(series: Sequence[Series], q: float, at: float, window: float) -> float:
    """`histogram_quantile(q, sum by (le) (rate(...)))` over the bucket series of all replicas."""
    ### BEGIN SOLUTION
    rates = sum_rates(series, at, window, ["le"])
    return histogram_quantile(q, {le: value for (le,), value in rates.items()})
    ### END SOLUTION


def burn_rate(
    errors: Sequence[Series], total: Sequence[Series], objective: float, at: float, window: float
) -> float | None:
    """How many times as fast as allowed the error budget is used up; None without traffic.

    The share of errors in the rates, over 1 - objective: at 1, the budget lasts its period. Where
    nobody has ever counted an error, there were none.

    >>> ok = Series({}, [Sample(0.0, 0.0), Sample(10.0, 90.0)])
    >>> bad = Series({}, [Sample(0.0, 0.0), Sample(10.0, 9.0)])
    >>> round(burn_rate([bad], [ok], 0.99, at=10.0, window=10.0), 6)
    10.0
    """
    ### BEGIN SOLUTION
    everything = sum(sum_rates(total, at, window).values())
    if everything == 0:
        return None
    return sum(sum_rates(errors, at, window).values()) / everything / (1 - objective)
    ### END SOLUTION
