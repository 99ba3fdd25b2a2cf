"""Item analysis: how hard each check was, how well it tells students apart, what went wrong."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from grader.course.errors import LabError
from grader.course.lab_toml import Lab
from grader.grading.journal import Journal
from grader.grading.report import AGREES, LabReport

FEWEST = 3  # with fewer students a correlation says nothing
HARD, EASY, WEAK = 0.3, 0.95, 0.2


@dataclass(frozen=True)
class Item:
    """One check over the class; `discrimination` is None where it cannot be computed."""

    name: str
    title: str
    task: int
    students: int
    passed: int
    discrimination: float | None

    @property
    def difficulty(self) -> float:
        """The share of students who passed, as the literature counts it: 1 is easiest."""
        return self.passed / self.students

    @property
    def remark(self) -> str:
        """What to look at, in a word or two."""
        if self.discrimination is not None and self.discrimination < 0:
            return "stronger students fail it: is the check right?"
        if self.difficulty >= EASY:
            return "nearly all pass"
        if self.difficulty <= HARD:
            return "few pass: teach it again"
        if self.discrimination is not None and self.discrimination < WEAK:
            return "says little about the rest"
        return ""


@dataclass(frozen=True)
class Slip:
    """A named mistake and how many students made it."""

    name: str
    says: str
    task: int
    students: int


@dataclass(frozen=True)
class Analysis:
    """Everything for the next lecture; `disagreeing` counts students by task."""

    lab: Lab
    students: int
    items: tuple[Item, ...]
    slips: tuple[Slip, ...]
    disagreeing: dict[int, int]  # all checks of the task pass, and a hidden scenario differs


def latest(folder: Path) -> Iterator[LabReport]:
    """The reports of the last `grader grade` into a folder, without those it could not read."""
    table = folder / "grades.json"
    if not table.is_file():
        raise LabError(f"{table} is not there; run `grader grade` first, or give --out as there.")
    journal = Journal.at(folder / "journal.jsonl")
    for row in json.loads(table.read_text(encoding="utf-8")):
        report = journal.get(row["key"])
        if report is not None:
            yield report


def analyse(lab: Lab, reports: Sequence[LabReport]) -> Analysis:
    """Difficulty and item-rest correlation of each check, and the counts of named mistakes."""
    if not reports:
        raise LabError(f"no submission of {lab.key} has been graded, so there is nothing to count.")
    if others := {report.lab for report in reports} - {lab.key}:
        raise LabError(
            f"these are the results of {', '.join(sorted(others))}, and not of {lab.key}; "
            "give --lab or --out of the other."
        )
    # The checks of one release may not be another's: each counts those who had it.
    of_report = [{c.id: c for t in r.tasks.values() for c in t.checks} for r in reports]
    totals = [sum(c.points for c in had.values() if c.passed) for had in of_report]
    checks = {c.id: (c, t.id) for r in reports for t in r.tasks.values() for c in t.checks}
    items = []
    for id, (check, task) in sorted(checks.items(), key=lambda item: item[1][1]):
        had = [(own[id], total) for own, total in zip(of_report, totals, strict=True) if id in own]
        passed = np.array([own.passed for own, _ in had], dtype=float)
        rest = np.array([total - own.points * own.passed for own, total in had], dtype=float)
        how_many = len(had), int(passed.sum())
        items.append(Item(check.name, check.title, task, *how_many, correlation(passed, rest)))
    disagreeing = {
        task: sum(
            r.tasks[task].claimed == r.tasks[task].max_points
            and any(s.status != AGREES for s in r.tasks[task].scenarios)
            for r in reports
            if task in r.tasks
        )
        for task in sorted({task for r in reports for task in r.tasks})
    }
    return Analysis(lab, len(reports), tuple(items), _slips(lab, reports), disagreeing)


def correlation(item: np.ndarray, rest: np.ndarray) -> float | None:
    """Pearson's; None with too few students, or where one of the two does not vary."""
    if len(item) < FEWEST or np.ptp(item) == 0 or np.ptp(rest) == 0:
        return None
    return float(np.corrcoef(item, rest)[0, 1])


def _slips(lab: Lab, reports: Sequence[LabReport]) -> tuple[Slip, ...]:
    said, tasks, counts = _sentences(lab), {}, Counter()
    for report in reports:
        made = {
            name: task.id
            for task in report.tasks.values()
            for check in task.checks
            if "," not in check.mistake  # one of several: not known which
            for name in [check.mistake]
            if name in said
        }
        counts.update(made.keys())
        tasks |= made
    return tuple(
        Slip(name, said[name], tasks[name], students)
        for name, students in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    )


def _sentences(lab: Lab) -> dict[str, str]:
    path = lab.folder / "mistakes.json"
    if not path.is_file():
        return {}
    table = json.loads(path.read_text(encoding="utf-8"))["observations"]
    return {entry["name"]: entry["says"] for entries in table.values() for entry in entries}
