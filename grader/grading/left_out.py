"""What a report does not show: the course's own solutions, where a submission prints them."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from grader.course.lab_toml import labs
from grader.course.stubs import solutions
from grader.release.leaks import squashed, telling

INSTEAD = "this text is left out: it holds lines of the course's own solutions"
BY_CHANCE = 2  # so many lines may stand in it


def shown(text: str, own: Iterable[str]) -> str:
    """The text, or a sentence in its place.

    own: what the student handed in; its lines tell nobody anything.
    """
    flat = squashed(text)
    found = [line for line in _solution_lines() if line in flat]
    if len(found) <= BY_CHANCE:
        return text
    theirs = squashed("\n".join(own))
    return text if sum(line not in theirs for line in found) <= BY_CHANCE else INSTEAD


@functools.cache
def _solution_lines() -> frozenset[str]:
    """Of every lab: those of the labs below are in the box, for the lab runs on them."""
    return frozenset(
        squashed(line) for lab in labs() for _, body in solutions(lab) for line in telling(body)
    )
