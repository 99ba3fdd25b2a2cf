"""Grades as the CSV files that Canvas and Moodle import."""

from __future__ import annotations

import csv
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from grader.grading.grade_rows import Row
from grader.grading.report_text import clean

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


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
