"""What monitors look at, and what they ask for (given)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Remedy(Enum):
    """What is done first about an alarm: the failure's own remedy."""

    SLOW_DOWN = "slow down"  # 30 % less in a step, and nobody new for a while
    CANCEL = "cancel"  # end the oldest request with its partial text
    REBUILD = "rebuild"  # a new engine, in which everything goes on
    COMPACT = "compact"  # move blocks together
    RELOAD = "reload"  # a new engine with weights that were checked


@dataclass(frozen=True)
class Vitals:
    """One look at an engine.

    now: seconds. free: share of the K/V store that is free. oldest, age: id of the request that
    is open for longest, and for how long in seconds; None and 0 without requests. steps: rounds
    that its loop has finished. work: open requests. fragmentation: share. bad_logits: whether
    NaN came since the last look.
    """

    now: float
    free: float = 1.0
    oldest: int | None = None
    age: float = 0.0
    steps: int = 0
    work: int = 0
    fragmentation: float = 0.0
    bad_logits: bool = False


@dataclass(frozen=True)
class Limits:
    """Beyond which a monitor gives alarm."""

    free: float = 0.10
    age: float = 30.0
    patience: float = 10.0
    fragmentation: float = 0.40


@dataclass(frozen=True)
class Alarm:
    """What to do; `request_id` of CANCEL says for whom."""

    remedy: Remedy
    request_id: int | None = None


class Phase(Enum):
    """What a server is doing, as it says itself."""

    STARTING = "starting"  # weights are being read
    SERVING = "serving"
    RELIEVING = "relieving"  # nobody new for a while
    RECOVERING = "recovering"  # a new engine is being made
    DRAINING = "draining"  # open requests end, then it stops
    GIVEN_UP = "given up"  # a person has to look at it


@dataclass(frozen=True)
class Health:
    """live: leave the process running. ready: send it new requests."""

    live: bool
    ready: bool
