"""The class table: a line for each student, and all of it as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from grader.grading.class_submissions import HandedIn
from grader.grading.kept_releases import mended
from grader.grading.report import LabReport


@dataclass(frozen=True)
class Row:
    """One student's line in the class table; small, so that a whole class is held in memory."""

    handed_in: HandedIn
    key: str
    points: float  # before the late policy
    max_points: float
    penalty: float  # share lost by handing in late
    tasks: tuple[float, ...]
    note: str
    release: str = ""  # whose checks these are; "": today's
    today: float | None = None  # what today's checks would give, where these are not today's
    mended: str = ""  # the checks that make the difference

    @property
    def final(self) -> float:
        return round(self.points * (1 - self.penalty), 2)


def row(
    handed_in: HandedIn, report: LabReport, penalty: float, today: LabReport | None = None
) -> Row:
    """The line of a report."""
    tasks = tuple(task.points for task in report.tasks.values())
    note = "; ".join(report.warnings)[:300]
    line = (handed_in, report.key, report.points, report.max_points, penalty, tasks, note)
    if today is None:
        return Row(*line, report.release)
    return Row(*line, report.release, today.points, mended(report, today))


def summary(path: Path, rows: Iterable[Row]) -> None:
    """Everything in the class table as JSON."""
    data = [
        {
            "student": row.handed_in.student,
            "file": str(row.handed_in.path.name),
            "points": row.points,
            "max_points": row.max_points,
            "late_penalty": row.penalty,
            "final": row.final,
            "tasks": list(row.tasks),
            "note": row.note,
            "key": row.key,
            "release": row.release,
            "points_by_todays_checks": row.points if row.today is None else row.today,
            "mended": row.mended,
        }
        for row in rows
    ]
    text = json.dumps(data, indent=1, ensure_ascii=False) + "\n"
    path.write_text(text, encoding="utf-8", errors="replace")
