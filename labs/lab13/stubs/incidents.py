"""From a recording to the cause of an incident, and its first evidence."""

from collections.abc import Callable
from itertools import pairwise

from nanovllm.observability.recording import Cause, Finding, Recording, Second

HELD = 10  # seconds for which a sign must hold


def first_held(signs: list[bool], held: int = HELD) -> int | None:
    """The first second of the first `held` in a row that are all True; None without such.

    >>> first_held([True, False, True, True, True], held=3)
    2
    """
    raise NotImplementedError("lab13 task 7: first_held")


def diagnose(recording: Recording) -> Finding:
    """The cause of an incident: the sign that is first seen, in the first second that shows it.

    Each sign must hold for 10 seconds in a row. In a second:

    - `hang`: somebody runs or waits, and no token comes; whatever the health check says
    - `leak`: nobody runs, and less than nine tenths of the blocks are free
    - `thrash`: more are preempted than finish, and somebody is preempted
    - `errors`: of those that end, more than 5 in 100 fail
    - `overload`: more wait than in the second before, and more wait than run; second 0 is none

    When several begin in the same second, the first of this list is the cause. Without any it is
    "none", with second None. `evidence` is a sentence with the second and, as that second has
    them, the figures that show the sign; with "none", any.

    >>> stuck = Second(1, 0, 0, 0, 4, 2, 0, 0.5)
    >>> diagnose([stuck] * 10).cause, diagnose([stuck] * 10).second
    ('hang', 0)
    """
    raise NotImplementedError("lab13 task 7: diagnose")
