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

    def __init__(self, *args, **kwargs):
        raise NotImplementedError("lab12 task 7: Ladder")


def report(history: Sequence[Rung]) -> dict[str, Any]:
    """What a person needs first, ready for JSON.

    - "failures": how often each failure was seen, by its value; those that were, only
    - "levels": how often each level answered, by its name; those that did, only
    - "first" and "last": earliest and latest time, in whatever order they stand; None without any
    - "highest": name of the highest level; None without any
    """
    raise NotImplementedError("lab12 task 7: report")
