"""Grade what students handed in, one student after the other; no one stops the others."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from nbgrader.api import MissingEntry

from grader.catalog import Lab
from grader.classroom.course import Course
from grader.classroom.mend import mend
from grader.grading.entries import shown

RECORD = "grading.json"
MOST_BYTES = 1 << 28
ERROR = re.compile(r"[\w.]*(Error|Exception|Timeout)\b")


@dataclass(frozen=True)
class Graded:
    """How it went for one student; `note` says what a person should know, "" for nothing."""

    student: str
    points: float
    max_points: float
    by_hand: bool  # a question waits for a person
    note: str
    failed: bool = False
    kept: bool = False  # graded before, and handed in nothing new since


def autograde(
    course: Course, lab: Lab, students: Iterable[str], again: bool = False
) -> Iterator[Graded]:
    """Grade each student's lab; `again` also those whose submission is as it was."""
    course.require_generated(lab)
    for student in students:
        try:
            yield _one(course, lab, student, again)
        except Exception as error:  # a hostile folder can fail anywhere: the next one is graded
            text = shown(f"not graded: {type(error).__name__}: {error}", 300)
            yield Graded(student, 0.0, float(lab.points), False, text, failed=True)


def _one(course: Course, lab: Lab, student: str, again: bool) -> Graded:
    submitted = course.place("submitted", student, lab)
    record = course.place("autograded", student, lab) / RECORD
    handed_in = submission_digest(submitted)
    before = _read(record)
    if before.get("digest") == handed_in and not again:
        return _scored(course, lab, student, before.get("note", ""), kept=True)
    note = mend(submitted, course.released(lab), lab.key)
    done = course.api.autograde(lab.key, student, force=True, create=True)
    if not done["success"]:
        text = f"not graded: {_reason(done.get('log', ''))}"
        return Graded(student, 0.0, float(lab.points), False, text, failed=True)
    result = _scored(course, lab, student, note)
    text = json.dumps({"digest": handed_in, **asdict(result)}, indent=1)
    record.write_text(text + "\n", encoding="utf-8")
    return result


def _scored(course: Course, lab: Lab, student: str, note: str, kept: bool = False) -> Graded:
    with course.gradebook() as gradebook:
        try:
            found = gradebook.find_submission(lab.key, student)
        except MissingEntry:
            return Graded(student, 0.0, float(lab.points), False, "not in the gradebook", True)
        late = found.late_submission_penalty
        notes = [note, f"late, {late:g} points off" if late else ""]
        return Graded(
            student,
            max(0.0, found.score - late),
            found.max_score,
            found.needs_manual_grade,
            "; ".join(filter(None, notes)),
            kept=kept,
        )


def _reason(log: str) -> str:
    """The last error that nbgrader's log tells of, without the traceback."""
    found = [line for line in log.splitlines() if ERROR.match(line)]
    return found[-1].strip() if found else "nbgrader gave no reason"


def submission_digest(folder: Path) -> str:
    """One digest of all files handed in."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            size = path.stat().st_size
            total.update(os.fsencode(path.relative_to(folder)) + f"\0{size}\0".encode())
            if size <= MOST_BYTES:
                total.update(path.read_bytes())
            else:  # no pack and no notebook is so large, and a hole costs its sender nothing
                total.update(f"{path.stat().st_mtime_ns}".encode())
    return total.hexdigest()


def _read(path: Path) -> dict:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
