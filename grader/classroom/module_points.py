"""The trusted step: points of the student's modules, put into the notebook's self-check cells."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_output
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets import Unicode

from grader.classroom.nbgrader_paths import course_directory, submission_of
from grader.classroom.overview_cell import add_overview
from grader.grading import LabReport, TaskReport, course_secret, grade_submission
from grader.grading.grading_toml import Config
from grader.grading.report_text import task_html, task_text

TASK = re.compile(r"(lab\d\d)-task-(\d+)")


class ModuleGrades(NbGraderPreprocessor):
    """Runs in nbgrader's own process; of a graded cell it believes the restored id alone.

    What the cell printed in the student's kernel is thrown away. Its outputs become the task's
    report and one plain number, the only kinds that nbgrader reads as partial credit.
    """

    secret_file = Unicode(help="the course's secret, made when it is missing").tag(config=True)
    settings_file = Unicode(help="grading.toml, with a table [limits]").tag(config=True)
    results_file = Unicode(help="results by content, so that a regrade is quick").tag(config=True)

    def preprocess(
        self, nb: NotebookNode, resources: dict[str, Any]
    ) -> tuple[NotebookNode, dict[str, Any]]:
        names = resources["nbgrader"]
        assignment, student = names["assignment"], names["student"]
        cells = {int(task): cell for cell in nb.cells for task in _task_of(cell, assignment)}
        if cells:
            settings = Path(self.settings_file)
            config = Config.load(settings if settings.is_file() else None)
            submission = submission_of(course_directory(self), student, assignment)
            report = grade_submission(
                submission,
                [assignment],
                student=student,
                secret=course_secret(Path(self.secret_file)),
                limits=config.limits,
                releases=config.kept(),
                cache=Path(self.results_file),
            )
            if report.lost:  # no zero for what is the grader's trouble
                raise RuntimeError(report.warnings[-1])
            for task in cells.keys() & report.tasks.keys():  # a release may lack a task
                _fill(cells[task], report, report.tasks[task])
            add_overview(nb, report)
        return nb, resources


def _task_of(cell: NotebookNode, assignment: str) -> list[str]:
    """The task that a cell grades, as a list of one, or none."""
    name = cell.metadata.get("nbgrader", {}).get("grade_id", "")
    match = TASK.fullmatch(name)
    return [match[2]] if match and match[1] == assignment and cell.cell_type == "code" else []


def _fill(cell: NotebookNode, report: LabReport, task: TaskReport) -> None:
    most = float(cell.metadata.nbgrader["points"])
    points = cell_points(task, most)
    cell.execution_count = 1
    cell.outputs = [
        *(new_output("stream", name="stdout", text=f"{said}\n") for said in report.warnings),
        new_output("display_data", {"text/plain": task_text(task), "text/html": task_html(task)}),
        new_output("execute_result", {"text/plain": repr(points)}, execution_count=1),
    ]


def said_of_all(notebook: Path) -> list[str]:
    """What the report of a graded notebook says of the submission as a whole."""
    for cell in nbformat.read(notebook, as_version=4).cells:
        if TASK.fullmatch(cell.metadata.get("nbgrader", {}).get("grade_id", "")):
            return [out.text.strip() for out in cell.outputs if out.output_type == "stream"]
    return []


def cell_points(task: TaskReport, most: float) -> float:
    """The task's share of its points as a plain float from 0 to `most`.

    nbgrader gives full marks for a negative number, nan or an unreadable one, and loses the
    submission for one above the maximum. What could not be graded here (no GPU) does not count.
    """
    share = task.points / task.max_points if task.max_points else 0.0
    if not math.isfinite(share):
        return 0.0
    return float(round(min(1.0, max(0.0, share)) * most, 2))
