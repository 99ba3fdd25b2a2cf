"""The student's own working time: the gaps between saves and checks that are short enough.

A gap of 15 minutes or more is a break. Each gap belongs to the task of the event that ends it:
what was done before a save is work on the file saved. What is saved at one time shares the gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from grader.course.digest import student_files
from grader.course.lab_toml import Lab

BREAK_SECONDS = 15 * 60
AT_ONCE_SECONDS = 5  # an editor that saves all its files, a copy, a formatter


@dataclass(frozen=True, order=True)
class Event:
    """A save or a check, at seconds since the epoch."""

    at: float
    lab: str
    task: int


def active_seconds(last: float | None, events: Iterable[Event]) -> dict[tuple[str, int], float]:
    """Seconds of work by lab and task in a series of events, the previous one at `last`.

    >>> active_seconds(0.0, [Event(60, "lab01", 1), Event(2000, "lab01", 2)])
    {('lab01', 1): 60.0}
    """
    spent: dict[tuple[str, int], float] = {}
    for group in _at_once(sorted(events)):
        gap = group[-1].at - last if last is not None else BREAK_SECONDS
        keys = {(event.lab, event.task) for event in group}
        for key in keys if 0 < gap < BREAK_SECONDS else ():
            spent[key] = spent.get(key, 0.0) + gap / len(keys)
        last = max(group[-1].at, group[-1].at if last is None else last)
    return spent


def _at_once(events: list[Event]) -> Iterator[list[Event]]:
    """The events in groups, each of which begins and ends within a few seconds."""
    group: list[Event] = []
    for event in events:
        if group and event.at - group[0].at > AT_ONCE_SECONDS:
            yield group
            group = []
        group.append(event)
    if group:
        yield group


def saves(lab: Lab, since: float, now: float, task_of_module: dict[str, int]) -> list[Event]:
    """The saves of a lab's files after one moment, as their modification times tell them.

    A file that the student added counts for the task under "".
    """
    found = []
    for path in student_files(lab):
        try:
            at = path.stat().st_mtime
        except OSError:
            continue
        if since < at <= now:  # a clock set wrong gives times in the future
            found.append(
                Event(at, lab.key, task_of_module.get(path.stem, task_of_module.get("", 0)))
            )
    return found


def spoken(seconds: float) -> str:
    """A length of time as one would say it.

    >>> spoken(59), spoken(60 * 95), spoken(3600 * 12)
    ('1 min', '1 h 35', '12 h')
    """
    minutes = -(-int(seconds) // 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest:02d}" if rest else f"{hours} h"
