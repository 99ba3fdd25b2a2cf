"""Levels 1 to 5: escalation by evidence, one level at a time, and down again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from nanovllm.resilience.failures import ENTRY, Failure, Level, Rules, Rung


class Ladder:
    """At which level a failure is answered; each kind of failure climbs on its own.

    - It enters at the level of ENTRY.
    - Each level is tried `tries` times. The next failure of that kind is answered one level
      higher, with its tries before it. HUMAN is the highest; there it stays.
    - Each whole `calm` seconds since the last failure of its kind bring it one level down, where
      its tries begin anew. Who would come below the level of its entry enters anew.
    - From HUMAN it comes down by `reset` only: a person has looked.

    `Ladder(rules=None)`: `Rules()` without any. `failed(now, failure)`: a failure was seen; the
    level that answers it. `history`: a list of a Rung for each of them. `level(now)`: the highest
    level at which any kind of failure stands now, None if none does. `reset(failure)`: a person
    has mended it; the next one of its kind enters anew.

    >>> ladder = Ladder(Rules(tries=1, calm=60.0))
    >>> [ladder.failed(now, Failure.TIMEOUT).name for now in (0.0, 1.0, 2.0, 70.0)]
    ['REQUEST', 'COMPONENT', 'SYSTEM', 'COMPONENT']
    """

    ### BEGIN SOLUTION
    def __init__(self, rules: Rules | None = None) -> None:
        self.rules = rules or Rules()
        self.history: list[Rung] = []
        self._tracks: dict[Failure, tuple[Level, int, float]] = {}  # level, tries, last time

    def failed(self, now: float, failure: Failure) -> Level:
        """A failure was seen: the level that answers it; `history` keeps it as a Rung."""
        level, tries = self._standing(now, failure) or (ENTRY[failure], 0)
        if tries >= self.rules.tries and level < Level.HUMAN:
            level, tries = Level(level + 1), 0
        self._tracks[failure] = level, tries + 1, now
        self.history.append(Rung(now, failure, level))
        return level

    def level(self, now: float) -> Level | None:
        """The highest level at which any kind of failure stands now; None if none does."""
        found = [self._standing(now, failure) for failure in self._tracks]
        return max((track[0] for track in found if track), default=None)

    def reset(self, failure: Failure) -> None:
        """A person has mended it: the next one of its kind enters anew."""
        self._tracks.pop(failure, None)

    def _standing(self, now: float, failure: Failure) -> tuple[Level, int] | None:
        """Level and tries of a kind, after the calm since its last failure."""
        if failure not in self._tracks:
            return None
        level, tries, last = self._tracks[failure]
        down = int((now - last) // self.rules.calm)
        if level is Level.HUMAN or down == 0:
            return level, tries
        return (Level(level - down), 0) if level - down >= ENTRY[failure] else None

    ### END SOLUTION


def report(history: Sequence[Rung]) -> dict[str, Any]:
    """What a person needs first, ready for JSON.

    - "failures": how often each failure was seen, by its value; those that were, only
    - "levels": how often each level answered, by its name; those that did, only
    - "first" and "last": earliest and latest time, in whatever order they stand; None without any
    - "highest": name of the highest level; None without any
    """
    ### BEGIN SOLUTION
    times = [rung.time for rung in history]
    highest = max((rung.level for rung in history), default=None)
    return {
        "failures": dict(Counter(rung.failure.value for rung in history)),
        "levels": dict(Counter(rung.level.name for rung in history)),
        "first": min(times, default=None),
        "last": max(times, default=None),
        "highest": None if highest is None else highest.name,
    }
    ### END SOLUTION
