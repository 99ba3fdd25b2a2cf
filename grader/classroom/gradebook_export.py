"""Grades out of nbgrader's gradebook into the files that `grader grade` writes too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nbgrader.api import Gradebook, Student
from nbgrader.plugins import ExportPlugin

from grader.grading.class_submissions import HandedIn
from grader.grading.grade_rows import Row
from grader.grading.gradebook_csv import canvas, moodle


class LmsExport(ExportPlugin):
    """One file an assignment; students who handed nothing in are left out."""

    file = ""
    write: Callable[[Path, Sequence[Row], str], None]

    def export(self, gradebook: Gradebook) -> None:
        """Write `--to`, or `file`; with several assignments one file each, named after them."""
        chosen: list[Any] = [
            one
            for one in gradebook.assignments
            if one.submissions
            and (not self.assignment or str(one.name) in map(str, self.assignment))
        ]
        target = Path(self.to or self.file)
        for one in chosen:
            name = target if len(chosen) == 1 else target.with_stem(f"{target.stem}-{one.name}")
            wanted = [found for found in one.submissions if self._wants(found.student)]
            rows = [_row(one, found) for found in wanted]
            type(self).write(name, sorted(rows, key=lambda row: row.handed_in.student), one.name)
            self.log.warning("%d grades of %s are in %s", len(rows), one.name, name)
            waiting = sorted(found.student.id for found in wanted if found.needs_manual_grade)
            if waiting:
                self.log.warning(
                    "%d of them wait for a person's points: %s", len(waiting), ", ".join(waiting)
                )

    def _wants(self, student: Student) -> bool:
        return not self.student or str(student.id) in map(str, self.student)


class CanvasExport(LmsExport):
    """For Canvas: Grades > Import. Students are matched by ID or SIS Login ID."""

    file = "canvas.csv"
    write = staticmethod(canvas)


class MoodleExport(LmsExport):
    """For Moodle: Grades > Import > CSV file, mapped by username or email."""

    file = "moodle.csv"
    write = staticmethod(moodle)


def _row(assignment: Any, found: Any) -> Row:
    """Of an Assignment and a SubmittedAssignment, whose columns SQLAlchemy gives no types."""
    student = found.student
    name = ", ".join(filter(None, [student.last_name, student.first_name]))
    person = HandedIn(
        student.id,
        Path(assignment.name),
        name=name,
        id=student.lms_user_id or "",
        login=student.id,
        email=student.email or "",
        submitted=found.timestamp,
    )
    penalty = found.late_submission_penalty / found.score if found.score else 0.0
    return Row(person, "", found.score, found.max_score, penalty, (), "")
