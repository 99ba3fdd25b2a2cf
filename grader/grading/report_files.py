"""A student's report as files, HTML and text, whose names no student can choose."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from grader.grading.report import LabReport
from grader.grading.report_text import lab_html, lab_text

UNSAFE = re.compile(r"[^\w.-]+", re.ASCII)
PLAIN = re.compile(r"[a-z0-9_][a-z0-9_.]{0,79}")  # nothing that differs in case or holds a digest


def reports(folder: Path, report: LabReport) -> None:
    """The student's HTML and text, under a file name that the student cannot choose."""
    folder.mkdir(parents=True, exist_ok=True)
    name = file_name(report.student)
    for ending, text in (("html", lab_html(report)), ("txt", lab_text(report))):
        (folder / f"{name}.{ending}").write_text(text, encoding="utf-8", errors="replace")


def file_name(student: str) -> str:
    """A plain file name for any student name, different for different students."""
    if PLAIN.fullmatch(student):
        return student
    plain = UNSAFE.sub("_", student)[:80].strip(".") or "student"
    return f"{plain}-{hashlib.sha256(student.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"
