"""Whose a file is, by the name that Canvas, Moodle or a person gave it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
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


def named_by_lms(origin: str) -> bool:
    """Whether Canvas or Moodle made this name: then it says whose the file is, and nobody chose."""
    return any(pattern.fullmatch(origin) for pattern in ORIGINS[:2])


def owner(names: Sequence[str], roster: Sequence[Person]) -> str:
    """The outermost name that is one of a student's; of files and folders that hold each other.

    What lies inside is theirs, whatever it is called. Where no name is a student's, the outermost.

    >>> owner(["mallory", "ada"], [Person("ada", None, None, None), Person("mallory", "M", "", "")])
    'mallory'
    >>> owner(["download", "ada"], [Person("ada", None, None, None)])
    'ada'
    """
    known = (name for name in names if named_by_lms(name) or students_named(name, roster))
    return next(known, names[0])


def students_named(origin: str, roster: Iterable[Person]) -> list[str]:
    """The ids that a file's name may mean: by the LMS's number, else exactly, else by letters.

    >>> class_of_two = [Person("ann.e", "Ann", "Ek", ""), Person("anne", "Anne", "", "")]
    >>> students_named("anne", class_of_two), students_named("Ann-E", class_of_two)
    (['anne'], ['ann.e', 'anne'])
    """
    people, found = list(roster), _parts(origin)
    name, lms = found["name"], found.get("lms")
    wanted = _letters(name)
    by_number = [one.id for one in people if lms is not None and one.lms_user_id == lms]
    exactly = [one.id for one in people if one.id in (name, origin)]
    by_letters = [one.id for one in people if wanted and wanted in _spellings(one)]
    return by_number or exactly or by_letters


def find_student(origin: str, roster: Iterable[Person]) -> str:
    """The id of the student whose files lie in a folder of this name.

    If it means nobody, or more than one, the name itself.
    """
    found = students_named(origin, roster)
    return found[0] if len(found) == 1 else re.sub(r"[^\w.@-]", "-", _parts(origin)["name"])


def _spellings(student: Person) -> set[str]:
    first, last = student.first_name or "", student.last_name or ""
    return {_letters(text) for text in (student.id, first + last, last + first)}


def _letters(text: str) -> str:
    return re.sub(r"[\W_]", "", text).lower()
