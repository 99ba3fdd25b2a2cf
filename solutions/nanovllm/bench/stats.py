"""From rounds to one number: medians, and ratios within a round, as machines are noisy."""

from collections.abc import Sequence
from statistics import median


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the ratios of each round: what slows a round slows both.

    >>> median_ratio([10.0, 5.0, 12.0], [5.0, 2.5, 12.0])
    2.0
    """
    return median(a / b for a, b in zip(ours, theirs, strict=True))


def spread(values: Sequence[float]) -> float:
    """How far the rounds swing: (largest - smallest) / median.

    >>> spread([9.0, 10.0, 11.0])
    0.2
    """
    return (max(values) - min(values)) / median(values)
