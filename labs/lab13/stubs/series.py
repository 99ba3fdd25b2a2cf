"""Scraped series: samples of a metric under its labels (given)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Sample(NamedTuple):
    """A value that was scraped at `time`, in seconds."""

    time: float
    value: float


@dataclass(frozen=True)
class Series:
    """The samples of a metric with these labels, in order of time."""

    labels: Mapping[str, str]
    samples: Sequence[Sample]
