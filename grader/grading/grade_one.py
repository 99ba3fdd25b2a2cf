"""The work on one submission: its checks and scenarios in the box, its verdict outside."""

from __future__ import annotations

import base64
import functools
from typing import Any

from grader.checks.markers import collect_checks
from grader.course.lab_toml import Lab
from grader.course.outcome import Status
from grader.grading.judge_scenarios import Scenarios
from grader.grading.kept_releases import released
from grader.grading.report import AGREES, DIFFERS, RAISED, LabReport, TaskReport
from grader.grading.run_items import SILENT, Result, Rounds
from grader.grading.submission import Submission
from grader.grading.verdicts import check_report
from grader.sandbox.job import Answer, Work
from grader.sandbox.limits import Limits
from grader.sandbox.sandbox import Sandbox

SENT = 4  # times the limit of one process is what all of a submission may send
ALONE_NO_BETTER = {str(Status.PASSED), str(Status.TODO)}


def boxed_files(handed_in: Submission, lab: Lab) -> dict[str, str]:
    """A submission as `Work` wants it; what it lacks is as in the stubs."""
    stubs = {p.relative_to(lab.stubs).as_posix(): p for p in lab.stubs.rglob("*.py")}
    files = {name: path.read_bytes() for name, path in stubs.items()} | handed_in.files
    return {
        f"{lab.package}/{name}": base64.b64encode(data).decode() for name, data in files.items()
    }


class Marking:
    """One submission of one lab on its way to a report."""

    def __init__(
        self, handed_in: Submission, lab: Lab, student: str, seeds: list[int], limits: Limits,
        sandbox: Sandbox, hidden: bool = True,
    ) -> None:  # fmt: skip
        self.handed_in, self.lab, self.student, self.seeds = handed_in, lab, student, seeds
        self.limits, self.sandbox, self.hidden = limits, sandbox, hidden
        self.files = boxed_files(handed_in, lab)
        self.left = float(limits.seconds)
        self.output = SENT * limits.output_mb << 20  # bytes that its processes may still send
        self.nothing = handed_in.problem  # why there are no results at all
        self.checks: dict[str, Result] = {}
        self.scenarios: Scenarios | None = None

    def report(self, key: str) -> LabReport:
        """Do the work; what the grader itself cannot do ends as a report that is marked as lost."""
        lost = False
        if not self.nothing:
            try:
                self._mark()
            except Exception as error:  # BoxError, or a slip of ours: the class must go on
                lost = True
                self.nothing = f"the grader could not finish: {type(error).__name__}: {error}"
        warnings = [*self.sandbox.warnings, *self.handed_in.notes]
        warnings += [self.nothing] if self.nothing else []
        return LabReport(
            lab=self.lab.key,
            title=self.lab.title,
            student=self.student,
            tasks={task.id: self._task(task) for task in self.lab.tasks},
            sandbox=self.sandbox.level,
            warnings=tuple(warnings),
            seconds=round(self.limits.seconds - self.left, 2),
            key=key,
            lost=lost,
            release=released(self.lab),
        )

    def _mark(self) -> None:
        """Everything once, in one process; then alone what may have suffered from the rest."""
        scenarios = self.scenarios = Scenarios(
            self.lab, self.seeds, self.sandbox, lambda task: self._box(task)[0],
            self.hidden, self._apart, self.handed_in.files,
        )  # fmt: skip
        checks = [check.id for check in self._entries]
        behind = [scenarios.task(scenarios.names)] if self.hidden else []
        begun = self._box(self._visible(checks), *behind)
        self._run_checks(checks, begun[0])
        if begun[1:]:
            told = [event.get("item") for event in begun[0].events]
            self._say_nothing_of([check for check in checks if check not in told])
        scenarios.run(scenarios.names, begun[1] if begun[1:] else None)
        for task in self._tasks:
            if any(s.status in (DIFFERS, RAISED) and not s.where.startswith("lab")
                   for s in scenarios.reports_of(task)):  # fmt: skip
                scenarios.run(scenarios.of_task[task])
        for task in self._tasks:
            checks = [check.id for check in self._entries if check.task == task]
            spoilt = any(self.checks[c].get("status") not in ALONE_NO_BETTER for c in checks)
            if spoilt and all(s.status == AGREES for s in scenarios.reports_of(task)):
                before = self.checks.copy()
                self._run_checks(checks)
                self._say_nothing_of(checks)
                self.checks = before | {c: self.checks[c] for c in checks if self._passed(c)}

    @property
    def _tasks(self) -> list[int]:
        return [task.id for task in self.lab.tasks]

    @functools.cached_property
    def _entries(self) -> list[Any]:
        return [check for check in collect_checks(self.lab) if check.task in self._tasks]

    def _run_checks(self, items: list[str], first: Answer | None = None) -> None:
        rounds = Rounds(
            lambda some: self._box(self._visible(some))[0],
            lambda item: item.partition("::")[0],
        ).run(items, first)
        for item in items:
            found = rounds.results.get(item) or {"reason": rounds.lost[item]}
            self.checks[item] = {n: text for n, text in found.items() if isinstance(text, str)}

    def _say_nothing_of(self, checks: list[str]) -> None:
        """A scenario had run before them, and could speak through a card: a result alone counts."""
        for check in checks:
            status = self.checks[check].get("status")
            self.checks[check] = {"status": status} if status else {"reason": SILENT}

    def _passed(self, check: str) -> bool:
        return self.checks[check].get("status") == str(Status.PASSED)

    def _visible(self, items: list[str]) -> dict[str, Any]:
        return {"kind": "visible", "lab": self.lab.key, "items": items}

    def _box(self, *tasks: dict[str, Any], files: dict[str, str] | None = None) -> list[Answer]:
        """An answer for each task that was begun; there is always a first.

        files: in place of the submission's.
        """
        if self.left <= 0:
            return [Answer([], f"the submission used up its {self.limits.seconds} seconds")]
        if self.output < 0:
            most = SENT * self.limits.output_mb
            return [Answer([], f"the submission sent more than {most} MB of results")]
        work = Work(self.lab.key, list(tasks), self.files if files is None else files)
        answers = self.sandbox.run(self.lab, work, self.limits, self.left)
        self.left -= answers.seconds
        self.output -= sum(answer.cost for answer in answers.of_tasks)
        return answers.of_tasks

    def _apart(self, task: dict[str, Any]) -> Answer:
        """A task in a box that holds stubs in place of the submission."""
        return self._box(task, files=boxed_files(Submission({}), self.lab))[0]

    def _task(self, task: Any) -> TaskReport:
        entries = [entry for entry in self._entries if entry.task == task.id]
        own = [data.decode("utf-8", "replace") for data in self.handed_in.files.values()]
        checks = [check_report(e, self.checks.get(e.id, {}), self.nothing, own) for e in entries]
        there = self.scenarios if not self.nothing else None
        scenarios = there.reports_of(task.id) if there else []
        return TaskReport(task.id, task.title, float(task.points), tuple(checks), tuple(scenarios))
