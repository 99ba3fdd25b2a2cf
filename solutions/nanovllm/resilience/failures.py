"""Failures, levels, and the table that says at which level each failure enters (given)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum


class Level(IntEnum):
    """What is mended; a higher level costs more, and can do more."""

    ADJUST = 1  # smaller steps, nobody new, compaction
    REQUEST = 2  # a request is ended with its partial text
    COMPONENT = 3  # a new engine; requests go on in it
    SYSTEM = 4  # a new process or replica; traffic moves
    HUMAN = 5  # not ready; a report for a person


class Failure(Enum):
    """What went wrong."""

    OUT_OF_MEMORY = "out of memory"
    FRAGMENTATION = "fragmentation"
    TIMEOUT = "timeout"
    NAN = "NaN"
    HANG = "hang"
    CRASH = "crash"


ENTRY: Mapping[Failure, Level] = {
    Failure.OUT_OF_MEMORY: Level.ADJUST,
    Failure.FRAGMENTATION: Level.ADJUST,
    Failure.TIMEOUT: Level.REQUEST,
    Failure.NAN: Level.COMPONENT,  # reload the weights, then the version that was kept
    Failure.HANG: Level.COMPONENT,  # no smaller step helps a step that does not end
    Failure.CRASH: Level.COMPONENT,  # a SIGKILL has no level 1
}


@dataclass(frozen=True)
class Rules:
    """tries: of one level, before the next. calm: seconds without a failure, for one level down."""

    tries: int = 2
    calm: float = 60.0


@dataclass(frozen=True)
class Rung:
    """That a failure was seen, and at which level it was answered."""

    time: float
    failure: Failure
    level: Level
