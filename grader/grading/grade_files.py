"""Grades as files: CSV as Canvas and Moodle import it, JSON, and a report for each student."""

from __future__ import annotations

import csv
import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grader.grading.class_submissions import HandedIn
from grader.grading.kept_releases import mended
from grader.grading.report import LabReport
from grader.grading.report_text import clean, lab_html, lab_text

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
UNSAFE = re.compile(r"[^\w.-]+", re.ASCII)
PLAIN = re.compile(r"[a-z0-9_][a-z0-9_.]{0,79}")  # nothing that differs in case or holds a digest


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


def canvas(path: Path, rows: Sequence[Row], assignment: str) -> None:
    """Canvas, Grades > Import: students are matched by ID, SIS User ID or SIS Login ID."""
    most = rows[0].max_points if rows else 0
    head = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", assignment]
    lines = [["    Points Possible", "", "", "", "", f"{most:g}"]]
    lines += [
        [_cell(one.name or one.student), _cell(one.id), "", _cell(one.login), "", f"{line.final:g}"]
        for line, one in ((line, line.handed_in) for line in rows)
    ]
    _write(path, head, lines)


def moodle(path: Path, rows: Sequence[Row], assignment: str) -> None:
    """Moodle, Grades > Import > CSV file: map by username, email or ID number."""
    head = ["idnumber", "username", "email", "fullname", assignment, f"{assignment} feedback"]
    lines = [
        [
            _cell(one.id),
            _cell(one.login or one.student),
            _cell(one.email),
            _cell(one.name or one.student),
            f"{line.final:g}",
            _cell(line.note),
        ]
        for line, one in ((line, line.handed_in) for line in rows)
    ]
    _write(path, head, lines)


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
    _whole(path, json.dumps(data, indent=1, ensure_ascii=False) + "\n")


def reports(folder: Path, report: LabReport) -> None:
    """The student's HTML and text, under a file name that the student cannot choose."""
    folder.mkdir(parents=True, exist_ok=True)
    name = file_name(report.student)
    _whole(folder / f"{name}.html", lab_html(report))
    _whole(folder / f"{name}.txt", lab_text(report))


def file_name(student: str) -> str:
    """A plain file name for any student name, different for different students."""
    if PLAIN.fullmatch(student):
        return student
    plain = UNSAFE.sub("_", student)[:80].strip(".") or "student"
    return f"{plain}-{hashlib.sha256(student.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


def _cell(text: str) -> str:
    """A value that a spreadsheet shows and does not compute, also where `;` separates cells."""
    text = clean(text).replace(";", ",")
    first = unicodedata.normalize("NFKC", text.lstrip()[:1])  # a full-width = computes as well
    return f"'{text}" if text.startswith(FORMULA) or first.startswith(FORMULA) else text


def _write(path: Path, head: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(head)
        writer.writerows(lines)


def _whole(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", errors="replace")
