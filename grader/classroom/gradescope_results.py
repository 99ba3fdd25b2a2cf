"""A report as Gradescope's `results.json`: what students see at once, later, and never."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import BaseModel

from grader.course.lab_toml import Lab
from grader.grading.report import FAILED, CheckReport, LabReport, TaskReport
from grader.grading.report_text import clean, line, number, verdict

VISIBLE_ONLY = (
    "Only the visible checks ran here, since this machine offers no sandbox that keeps its "
    "promises; the points that count come from your instructor."
)
WHOLE = (
    "A task earns the points of its passed checks, as far as its hidden scenarios agree with the "
    "reference. Scenarios and the total are shown after the due date."
)


class Test(BaseModel):
    """One line on Gradescope; without a score it is only shown."""

    name: str
    output: str
    status: str  # passed or failed
    visibility: str
    score: float | None = None
    max_score: float | None = None


class Results(BaseModel):
    """The whole file; execution_time in seconds. A score goes before the sum of the tests'."""

    output: str
    score: float | None = None
    tests: Sequence[Test] = ()
    visibility: str = "visible"
    stdout_visibility: str = "hidden"  # it names files of the grader
    execution_time: int = 0

    @property
    def text(self) -> str:
        return self.model_dump_json(exclude_none=True, indent=1)


NOT_GRADED = Results(
    output="Your submission could not be graded, and that is not your code's fault: hand it in "
    "again, and tell your instructor if this text comes back.",
    score=0,
)


def refused(lab: Lab, problem: str) -> Results:
    """For what holds nothing to grade; problem: one sentence that begins with "it"."""
    said = (
        f"Nothing was graded, because of what you handed in: {problem.rstrip('.')}; hand in "
        f"{lab.key}.zip, which `lab pack {lab.number:02d}` writes, or the Python files of "
        f"nanovllm/{lab.package}/."
    )
    return Results(output=line(said), score=0)


def results(report: LabReport, notes: Sequence[str]) -> Results:
    """Of a submission that was graded; notes: what to say of files that were left out.

    Where no scenario was run, the checks alone are sent, and no total.
    """
    promised = not report.unsandboxed
    tests = [_check(task, check) for task in report.tasks.values() for check in task.checks]
    tests += [_scenarios(task) for task in report.tasks.values() if promised and task.scenarios]
    said = [WHOLE if promised else VISIBLE_ONLY, *map(line, notes)]
    score = report.points if promised else None
    return Results(output="\n".join(said), score=score, tests=tests)


def _check(task: TaskReport, check: CheckReport) -> Test:
    card = check.card if check.status == FAILED else ""  # else the reason says it shorter
    said = "" if check.passed else card or check.reason or check.status
    return Test(
        name=f"Task {task.id}: {check.title}",
        output=clean(said),
        status="passed" if check.passed else "failed",
        visibility="visible",
        score=check.points if check.passed else 0,
        max_score=check.points,
    )


def _scenarios(task: TaskReport) -> Test:
    return Test(
        name=f"Task {task.id}: {task.title}, hidden scenarios",
        output="\n".join(_told(task)),
        status="passed" if task.share == 1 else "failed",
        visibility="after_due_date",  # while one is so, Gradescope hides the total as well
    )


def _told(task: TaskReport) -> Iterator[str]:
    for place, scenario in enumerate(task.scenarios, 1):
        yield f"hidden scenario {place}: {verdict(scenario)}"
    yield f"the task earns {number(task.points)} of {number(task.max_points)} points"
