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
    ### BEGIN SOLUTION
    run = 0
    for second, sign in enumerate(signs):
        run = run + 1 if sign else 0
        if run == held:
            return second - held + 1
    return None
    ### END SOLUTION


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
    ### BEGIN SOLUTION
    signs: dict[Cause, Callable[[Second, Second], bool]] = {
        "hang": lambda _, now: now.running + now.waiting > 0 and now.tokens == 0,
        "leak": lambda _, now: now.running == 0 and now.free < 0.9,
        "thrash": lambda _, now: now.preempted > now.finished,
        "errors": lambda _, now: now.failed > 0.05 * (now.finished + now.failed),
        "overload": lambda before, now: now.waiting > before.waiting and now.waiting > now.running,
    }
    pairs = [*pairwise([*recording[:1], *recording])]
    found: Finding | None = None
    for cause, sign in signs.items():
        second = first_held([sign(before, now) for before, now in pairs])
        if second is not None and (found is None or second < (found.second or 0)):
            found = Finding(cause, second, f"Second {second}: {recording[second]}")
    return found or Finding("none", None, "No sign holds for ten seconds.")
    ### END SOLUTION
