"""What is left of an incident: one row of a server's metrics a second (given)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Cause = Literal["none", "hang", "leak", "thrash", "errors", "overload"]


@dataclass(frozen=True)
class Second:
    """A server in one second; counts are of this second, `free` is the share of K/V blocks.

    finished: requests that ended well; failed: those that did not, which are not in `finished`.
    healthy: whether the health check answered 200.
    """

    arrived: int
    finished: int
    failed: int
    tokens: int
    running: int
    waiting: int
    preempted: int
    free: float
    healthy: bool = True


Recording = Sequence[Second]


@dataclass(frozen=True)
class Finding:
    """What was wrong, the first second that shows it, and what that second says."""

    cause: Cause
    second: int | None
    evidence: str
