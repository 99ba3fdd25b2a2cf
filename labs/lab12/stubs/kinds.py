"""What goes wrong on purpose: the vocabulary of faults (given)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What goes wrong, with a step of the engine or with a message."""

    CRASH = "crash"  # the step raises before it has done anything
    LOST = "lost"  # the step is done, but its events never come; a message never arrives
    NAN = "nan"  # every logit of the step is NaN
    NO_START = "no start"  # the next engine cannot be made
    HANG = "hang"  # the step takes `HANG_SECONDS`, then raises: somebody has ended it
    SLOW = "slow"  # the step takes `SLOW_SECONDS` more
    STORE_FULL = "store full"  # nobody is let into the batch in this step
    CLOCK_JUMP = "clock jump"  # `JUMP_SECONDS` pass before the step
    LATE = "late"  # a message takes `LATE_SECONDS` more
    DOUBLED = "doubled"  # a message arrives twice, the second time late
    DISK_FULL = "disk full"  # the journal cannot be written


HANG_SECONDS, SLOW_SECONDS, JUMP_SECONDS, LATE_SECONDS = 3.0, 1.0, 100.0, 2.0
DEATHS = (Kind.CRASH, Kind.LOST, Kind.NAN, Kind.HANG)
MILD = (Kind.SLOW, Kind.STORE_FULL, Kind.CLOCK_JUMP)
ON_THE_WIRE = (Kind.LOST, Kind.LATE, Kind.DOUBLED)


class FaultError(RuntimeError):
    """What a fault raises."""


@dataclass(frozen=True)
class Fault:
    """At the step, or the message, of this number, counted over a whole run from 0."""

    step: int
    kind: Kind
