"""The first cell of a graded notebook: the points by task, and where a person's word is wanted."""

from __future__ import annotations

from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

from grader.grading import LabReport, TaskReport
from grader.grading.report import AGREES, BROKEN
from grader.grading.report_text import number

NAME = "report-of-the-course"


def add_overview(notebook: NotebookNode, report: LabReport) -> None:
    """Put the table in front. Nothing in it was written by the student."""
    questions = [
        f"[{name}](#{name}) ({number(float(cell.metadata.nbgrader['points']))})"
        for cell in notebook.cells
        if (name := _question(cell))
    ]
    lines = [
        f"**{report.lab} {report.title}: {number(report.points)} of {number(report.max_points)} "
        "points by the checks**",
        "",
        "| task | points | checks passed | hidden scenarios that agree | the first that fails |",
        "|---|---|---|---|---|",
        *(_line(task) for task in report.tasks.values()),
        "",
    ]
    lines += [f"Graded by a person: {', '.join(questions)}."] if questions else []
    cell = new_markdown_cell("\n".join(lines), id=NAME)
    if notebook.nbformat_minor < 5:  # cells of older notebooks have no id
        del cell["id"]
    notebook.cells = [cell, *(one for one in notebook.cells if one.get("id") != NAME)]


def _line(task: TaskReport) -> str:
    failed = [check.title for check in task.checks if not check.passed]
    usable = [scenario for scenario in task.scenarios if scenario.status != BROKEN]
    agree = sum(scenario.status == AGREES for scenario in usable)
    passed = len(task.checks) - len(failed)
    points = f"{number(task.points)} / {number(task.max_points)}"
    parts = [f"{task.id} {task.title}", points, f"{passed} of {len(task.checks)}",
             f"{agree} of {len(usable)}", failed[0] if failed else ""]  # fmt: skip
    return f"| {' | '.join(part.replace('|', chr(92) + '|') for part in parts)} |"


def _question(cell: NotebookNode) -> str:
    """The grade id of an answer that a person grades, else ""."""
    entry = cell.metadata.get("nbgrader", {})
    return entry["grade_id"] if entry.get("grade") and entry.get("solution") else ""
