"""Grade what students handed in, one student after the other; no one stops the others."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nbgrader.api import MissingEntry

from grader.classroom.class_folder import Course
from grader.classroom.module_points import said_of_all
from grader.classroom.repair_notebook import mend
from grader.course.lab_toml import Lab
from grader.grading.zip_or_folder import shown

RECORD = "grading.json"
MOST_BYTES = 1 << 28
OWN = ("LabError", "RuntimeError")  # the course's own sentences
ERROR = re.compile(r"\s*(?:\w+\.)*(?P<name>\w*(?:Error|Exception|Timeout))\b:?\s*(?P<says>.*)")


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
    course.require_settings()
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
    settled = _settled(course, lab, student) if before.get("digest") == handed_in else {}
    note = mend(submitted, course.released(lab), lab.key)
    done = course.api.autograde(lab.key, student, force=True, create=True)
    if not done["success"]:
        text = f"not graded: {reason(str(done.get('log') or done.get('error', '')))}"
        return Graded(student, 0.0, float(lab.points), False, text, failed=True)
    _settle(course, lab, student, settled)
    graded = course.place("autograded", student, lab) / f"{lab.key}.ipynb"
    result = _scored(course, lab, student, "; ".join(filter(None, [note, *said_of_all(graded)])))
    text = json.dumps({"digest": handed_in, **asdict(result)}, indent=1)
    record.write_text(text + "\n", encoding="utf-8")
    return result


def _settled(course: Course, lab: Lab, student: str) -> dict[str, float | None]:
    """Cells that a person has graded, and what the checks had given them."""
    with course.gradebook() as gradebook:
        try:
            found = gradebook.find_submission_notebook(lab.key, lab.key, student)
        except MissingEntry:
            return {}
        return {
            one.name: one.auto_score
            for one in found.grades
            if one.manual_score is not None and not one.needs_manual_grade
        }


def _settle(course: Course, lab: Lab, student: str, settled: dict[str, float | None]) -> None:
    """nbgrader asks for another look at all that a person graded; here nothing has changed."""
    with course.gradebook() as gradebook:
        found = gradebook.find_submission_notebook(lab.key, lab.key, student)
        for one in found.grades:
            if one.name in settled and settled[one.name] == one.auto_score:
                one.needs_manual_grade = False
        gradebook.db.commit()


def _scored(course: Course, lab: Lab, student: str, note: str, kept: bool = False) -> Graded:
    with course.gradebook() as gradebook:
        try:
            found: Any = gradebook.find_submission(lab.key, student)  # columns have no types
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


def reason(log: str) -> str:
    """The last error that nbgrader's log tells of, without the traceback that it indents."""
    found = [match for line in log.splitlines() if (match := ERROR.fullmatch(line))]
    if not found:
        return "nbgrader gave no reason"
    name, says = found[-1]["name"], found[-1]["says"]
    return says if name in OWN and says else f"{name}: {says}".rstrip(": ")


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
