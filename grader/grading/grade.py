"""The entry points: one submission of one lab to a report, through memory and journal."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from grader.course.lab_toml import Lab, find_lab
from grader.course.paths import RELEASES
from grader.grading import student_seeds
from grader.grading.grade_one import Marking
from grader.grading.journal import Journal
from grader.grading.kept_releases import is_unknown, made_with
from grader.grading.report import LabReport, TaskReport
from grader.grading.submission import Submission, read
from grader.sandbox.limits import Limits
from grader.sandbox.sandbox import Sandbox, shared

UNKEPT = "made with a release that is not kept here, so graded by today's checks"
KEPT = 64  # reports in memory, for a notebook that asks for one task after the other
_memory: dict[str, LabReport] = {}
_memory_lock = threading.Lock()


def grade_submission(
    submission: Path,
    labs: Sequence[str],
    *,
    student: str,
    secret: bytes,
    limits: Limits | None = None,
    sandbox: Sandbox | None = None,
    cache: Path | None = None,
    releases: Path | None = RELEASES,
) -> LabReport:
    """Grade one lab (`labs` names exactly one) of a folder or zip; the same again from the cache.

    Never raises for anything in the submission: every task is in the report, with its reason.
    `cache` is a journal file to look the result up in and to append it to; nobody else is kept
    from it in between.
    """
    (name,) = labs
    lab, limits, box = find_lab(name), limits or Limits(), sandbox or shared()
    found = read(submission, lab, limits)
    work = (found, made_with(lab, found.release, releases), student, secret, limits)
    if cache is None:
        report = grade_read(*work, box)
    else:
        key = student_seeds.result_key(*work, box.probe(lab))
        with Journal.borrowed(cache) as journal:
            known = journal.get(key)
        report = known or grade_read(*work, box, key=key)
        if known is None and not report.lost:
            with Journal.borrowed(cache) as journal:
                journal.add(report)
    if releases is not None and is_unknown(found.release, releases):
        return replace(report, warnings=(UNKEPT, *report.warnings))
    return report


def grade_task(
    submission: Path, lab: str, task: int, *, student: str, secret: bytes, **options: Any
) -> TaskReport:
    """One task of `grade_submission`; the lab is graded once, whichever task is asked for first."""
    report = grade_submission(submission, [lab], student=student, secret=secret, **options)
    return report.tasks[find_lab(lab).task(task).id]


def grade_lab(
    path: Path,
    lab: Lab,
    student: str,
    secret: bytes,
    limits: Limits,
    sandbox: Sandbox,
    journal: Journal | None = None,
) -> LabReport:
    """`grade_submission` with everything looked up."""
    return grade_read(read(path, lab, limits), lab, student, secret, limits, sandbox, journal)


def grade_read(
    handed_in: Submission,
    lab: Lab,
    student: str,
    secret: bytes,
    limits: Limits,
    sandbox: Sandbox,
    journal: Journal | None = None,
    key: str = "",
    hidden: bool = True,
) -> LabReport:
    """Grade files that have been read already, unless the result is known.

    key: `student_seeds.result_key` of it all, where the caller has made it. hidden: False: the
    visible checks alone.
    """
    key = key or student_seeds.result_key(
        handed_in, lab, student, secret, limits, sandbox.probe(lab)
    )
    key += "" if hidden else "-visible"
    with _memory_lock:
        known = (journal.get(key) if journal is not None else None) or _memory.get(key)
    if known is None:
        seeds = student_seeds.seeds(secret, lab, student)
        known = Marking(handed_in, lab, student, seeds, limits, sandbox, hidden).report(key)
        if known.lost:
            return known
        with _memory_lock:
            _memory[key] = known
            while len(_memory) > KEPT:
                _memory.pop(next(iter(_memory)))
    if journal is not None:
        journal.add(known)
    return known
