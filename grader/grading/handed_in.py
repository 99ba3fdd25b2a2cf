"""Who handed in what: a folder of submissions as Canvas, Moodle or a teacher makes it."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from grader.errors import LabError
from grader.grading.entries import shown

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


def _origin(one: HandedIn) -> str:
    return shown(one.path.name)


def _named(path: Path) -> HandedIn:
    stem = path.name if path.is_dir() else path.stem
    known = CANVAS.fullmatch(stem) or MOODLE.fullmatch(stem)  # what follows is the student's own
    if path.is_dir():
        inside = [p for p in path.iterdir() if not p.name.startswith(".")]
        if len(inside) == 1 and inside[0].suffix == ".zip" and not inside[0].is_symlink():
            path = inside[0]
    if known:
        return HandedIn(known["student"], path, id=known["id"])
    return HandedIn(LAB.sub("", stem) or stem, path)


def _with_roster(found: list[HandedIn], roster: Path) -> list[HandedIn]:
    """Fill in from a CSV with a column `file` (name in the folder) or `student`."""
    try:
        with roster.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise LabError(f"{roster} cannot be read: {error}.") from None
    unknown = sorted(set(rows[0] if rows else ()) - set(COLUMNS))
    if unknown:
        raise LabError(f"{roster}: unknown column {unknown[0]!r}; there are {', '.join(COLUMNS)}.")
    by_file = {row["file"]: row for row in rows if row.get("file")}
    by_student = {row["student"]: row for row in rows if row.get("student")}
    filled = []
    for one in found:
        names = (one.path.name, one.path.parent.name)
        row = next((by_file[name] for name in names if name in by_file), None)
        filled.append(_filled(one, row or by_student.get(one.student), roster))
    return filled


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
