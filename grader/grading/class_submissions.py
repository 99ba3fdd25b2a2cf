"""Who handed in what: a folder of submissions as Canvas, Moodle or a teacher makes it."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from grader.course.errors import LabError
from grader.grading.upload_names import Person, find_student, upload
from grader.grading.zip_or_folder import shown

CANVAS = re.compile(r"(?P<student>[^_]+)_(?:LATE_)?(?P<id>\d+)_\d+_.*")
MOODLE = re.compile(r"(?P<student>.+?)_(?P<id>\d+)_assignsubmission_file_?.*")
LAB = re.compile(r"[-_ .]?lab\d\d$", re.IGNORECASE)
COLUMNS = ("file", "student", "name", "id", "login", "email", "submitted")


@dataclass(frozen=True)
class HandedIn:
    """One student's submission; the further fields are those of the roster, "" where not known."""

    student: str
    path: Path
    name: str = ""
    id: str = ""
    login: str = ""
    email: str = ""
    submitted: datetime | None = None
    origin: str = ""  # the name in the folder, without .zip


def discover(folder: Path, roster: Path | None = None) -> list[HandedIn]:
    """The submissions in a folder, one for each zip and folder in it, in the order of names.

    LabError where two belong to one student or id, or the roster cannot be read.
    """
    if not folder.is_dir():
        raise LabError(f"{folder} is no folder; give the one that holds the submissions.")
    found = [
        _named(path)
        for path in sorted(folder.iterdir())
        if not path.name.startswith((".", "__")) and (path.is_dir() or path.suffix == ".zip")
    ]
    if not found:
        others = ", ".join(left_out(folder))
        raise LabError(
            f"{folder} has no submission in it{others and f'; left out: {others}'}; each is a zip "
            "or a folder of its own."
        )
    found = _newest(found)
    found = _with_roster(found, roster) if roster else found
    for whose in ("student", "id"):
        seen: dict[str, HandedIn] = {}
        for one in found:
            name = getattr(one, whose)
            if name and (other := seen.setdefault(name, one)) is not one:
                raise LabError(
                    f"{_origin(other)} and {_origin(one)} are both of {shown(name)}; keep the one "
                    "that counts, or tell them apart in a roster (--roster)."
                )
    return found


def _newest(found: list[HandedIn]) -> list[HandedIn]:
    """Of several uploads by one of Canvas's people the last one, by Canvas's own growing number."""
    last: dict[tuple[str, str], HandedIn] = {}
    for one in found:
        number = upload(one.origin)
        whose = (one.student, one.id) if number else ("", one.path.as_posix())
        if whose not in last or number > upload(last[whose].origin):
            last[whose] = one
    return list(last.values())


def left_out(folder: Path) -> list[str]:
    """The names in a folder that are neither a zip nor a folder."""
    return sorted(shown(p.name) for p in folder.iterdir() if p.is_file() and p.suffix != ".zip")


def _origin(one: HandedIn) -> str:
    return shown(one.path.name)


def _named(path: Path) -> HandedIn:
    stem = path.name if path.is_dir() else path.stem
    known = CANVAS.fullmatch(stem) or MOODLE.fullmatch(stem)  # what follows is the student's own
    path = alone_inside(path)
    if known:
        return HandedIn(known["student"], path, id=known["id"], origin=stem)
    return HandedIn(LAB.sub("", stem) or stem, path, origin=stem)


def alone_inside(path: Path) -> Path:
    """The zip that is all that a folder holds; else the path itself."""
    inside = [p for p in path.iterdir() if not p.name.startswith(".")] if path.is_dir() else []
    one_zip = len(inside) == 1 and inside[0].suffix == ".zip" and not inside[0].is_symlink()
    return inside[0] if one_zip else path


def _with_roster(found: list[HandedIn], roster: Path) -> list[HandedIn]:
    """Fill in from a CSV with a column `file` (name in the folder) or `student`; or nbgrader's."""
    try:
        with roster.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            rows, columns = list(reader), set(reader.fieldnames or ())
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise LabError(f"{roster} cannot be read: {error}.") from None
    if {"id", "first_name"} <= columns:
        return [_of_class(one, rows) for one in found]
    unknown = sorted(columns - set(COLUMNS))
    if unknown:
        raise LabError(f"{roster}: unknown column {unknown[0]!r}; there are {', '.join(COLUMNS)}.")
    if not columns & {"file", "student"}:
        raise LabError(f"{roster} has neither a column file nor student, so nobody is found in it.")
    by_file = {row["file"]: row for row in rows if row.get("file")}
    by_student = {row["student"]: row for row in rows if row.get("student")}
    filled = []
    for one in found:
        names = (one.path.name, one.path.parent.name)
        row = next((by_file[name] for name in names if name in by_file), None)
        filled.append(_filled(one, row or by_student.get(one.student), roster))
    return filled


def _of_class(one: HandedIn, rows: list[dict[str, str]]) -> HandedIn:
    """By the roster of `nbgrader db student import`, as collecting finds a student in it."""
    people = {
        row["id"]: Person(
            row["id"], row["first_name"], row.get("last_name") or "", row.get("lms_user_id") or ""
        )
        for row in rows
    }
    person = people.get(find_student(one.origin, people.values()))
    if person is None:
        return one
    email = next(row.get("email") or "" for row in rows if row["id"] == person.id)
    name = ", ".join(filter(None, (person.last_name, person.first_name)))
    return replace(
        one, student=person.id, login=person.id, name=name, email=email, id=person.lms_user_id
    )


def _filled(one: HandedIn, row: dict[str, str] | None, roster: Path) -> HandedIn:
    if row is None:
        return one
    given = {key: row[key] for key in ("student", "name", "id", "login", "email") if row.get(key)}
    if row.get("submitted"):
        try:
            at = datetime.fromisoformat(row["submitted"])
        except ValueError:
            at = None
        if at is None or at.tzinfo is None:
            raise LabError(
                f"{roster}: submitted must be as 2026-10-01T23:59:00+02:00, not {row['submitted']}."
            )
        return replace(one, **given, submitted=at)
    return replace(one, **given)


def unknown_times(found: Iterable[HandedIn]) -> list[str]:
    """The students whose time of submission is not known."""
    return [one.student for one in found if one.submitted is None]
