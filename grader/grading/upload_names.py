"""Whose a file is, by the name that Canvas, Moodle or a person gave it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

ORIGINS = (
    # Canvas: lovelaceada_LATE_1234_567890_lab01-2.zip
    re.compile(r"(?s)(?P<name>[^_]+)_(?:LATE_)?(?P<lms>\d+)_(?P<upload>\d+)_.+"),
    # Moodle: Ada Lovelace_98765_assignsubmission_file_/lab01.zip, or without the folder
    re.compile(r"(?s)(?P<name>[^_]+)_(?P<person>\d+)_assignsubmission_file_.*"),
    # A folder or a file by the student's id: ada/lab01.zip, lab01_ada.zip, ada.zip
    re.compile(r"(?s)lab\d\d[-_](?P<name>.+)"),
    re.compile(r"(?s)(?P<name>.+)"),
)


class Person(NamedTuple):
    """A student of the roster; nbgrader's own has the same fields."""

    id: str
    first_name: str | None
    last_name: str | None
    lms_user_id: str | None


def _parts(origin: str) -> dict[str, str]:
    """What the name of a file or folder says: `name`, and the numbers of Canvas or Moodle."""
    match = next(found for pattern in ORIGINS if (found := pattern.fullmatch(origin)))
    return {key: value for key, value in match.groupdict().items() if value}


def person(origin: str) -> tuple[str, str]:
    """Whom the LMS means, by its own number where it gives one."""
    found = _parts(origin)
    number = found.get("lms") or found.get("person") or ""
    return number, "" if number else _letters(found["name"])


def upload(origin: str) -> int:
    """Canvas's number of an upload, which grows; 0 where there is none."""
    return int(_parts(origin).get("upload", 0))


def names_student(stem: str, roster: Iterable[Person]) -> bool:
    """Whether a file is named as one student's: what is in it is theirs, whatever it is called."""
    people = list(roster)
    by_lms = any(pattern.fullmatch(stem) for pattern in ORIGINS[:2])
    return by_lms or find_student(stem, people) in {student.id for student in people}


def find_student(origin: str, roster: Iterable[Person]) -> str:
    """The id of the student whose files lie in a folder of this name; if unknown, the name."""
    found = _parts(origin)
    name, lms = found["name"], found.get("lms")
    for student in roster:
        if lms is not None and student.lms_user_id == lms:
            return student.id
    wanted = _letters(name)
    for student in roster:
        first, last = student.first_name or "", student.last_name or ""
        names = (student.id, first + last, last + first)
        if wanted and wanted in map(_letters, names):
            return student.id
    return re.sub(r"[^\w.@-]", "-", name)


def _letters(text: str) -> str:
    return re.sub(r"[\W_]", "", text).lower()
