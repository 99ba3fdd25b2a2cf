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
    raise NotImplementedError("lab13 task 5: increase")


def rate(samples: Sequence[Sample], at: float, window: float) -> float | None:
    """`increase` a second.

    >>> rate([Sample(10.0, 5.0), Sample(20.0, 7.0), Sample(30.0, 1.0)], at=30.0, window=20.0)
    0.15
    """
    raise NotImplementedError("lab13 task 5: rate")


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
    raise NotImplementedError("lab13 task 5: sum_rates")


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
    raise NotImplementedError("lab13 task 5: histogram_quantile")


def quantile_over(series: Sequence[Series], q: float, at: float, window: float) -> float:
    """`histogram_quantile(q, sum by (le) (rate(...)))` over the bucket series of all replicas."""
    raise NotImplementedError("lab13 task 5: quantile_over")


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
    raise NotImplementedError("lab13 task 5: burn_rate")
