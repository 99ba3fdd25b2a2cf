"""The work on one submission: its checks and scenarios in the box, its verdict outside."""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Iterable
from typing import Any

from grader.catalog import Lab
from grader.collect import collect_checks
from grader.grading.limits import Limits
from grader.grading.listing import REFERENCE_SECONDS, listing, sources
from grader.grading.report import (
    AGREES,
    DIFFERS,
    RAISED,
    LabReport,
    ScenarioReport,
    TaskReport,
)
from grader.grading.rounds import Result, Rounds
from grader.grading.sandbox import Sandbox
from grader.grading.submission import Submission
from grader.grading.verdicts import check_report, draw, scenario_report
from grader.grading.work import Answer, Answers, BoxError, Work
from grader.outcome import Status

ALONE_NO_BETTER = {str(Status.PASSED), str(Status.TODO), str(Status.BLOCKED)}


class Marking:
    """One submission of one lab on its way to a report."""

    def __init__(
        self, handed_in: Submission, lab: Lab, student: str, seeds: list[int], limits: Limits,
        sandbox: Sandbox,
    ) -> None:  # fmt: skip
        self.handed_in, self.lab, self.student, self.seeds = handed_in, lab, student, seeds
        self.limits, self.sandbox = limits, sandbox
        stubs = {p.relative_to(lab.stubs).as_posix(): p for p in lab.stubs.rglob("*.py")}
        files = {name: path.read_bytes() for name, path in stubs.items()} | handed_in.files
        self.files = {
            f"{lab.package}/{name}": base64.b64encode(data).decode() for name, data in files.items()
        }
        self.left = float(limits.seconds)
        self.nothing = handed_in.problem  # why there are no results at all
        self.checks: dict[str, Result] = {}
        self.scenarios: dict[str, ScenarioReport] = {}
        self.task_of_scenario: dict[str, int] = {}
        self._judged: dict[str, tuple[Any, dict[str, Any]]] = {}  # item -> observed, verdict

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
            sandbox=self.sandbox.rung,
            warnings=tuple(warnings),
            seconds=round(self.limits.seconds - self.left, 2),
            key=key,
            lost=lost,
        )

    def _mark(self) -> None:
        """Everything once, in one process; then alone what may have suffered from the rest."""
        listed = listing(self.lab, self.sandbox)
        self.task_of_scenario = {name: task for name, task in listed if task in self._tasks}
        checks, scenarios = [check.id for check in self._entries], list(self.task_of_scenario)
        drawn = [item for items in self._draws(scenarios).values() for item in items]
        begun = self._box(self._visible(checks), self._hidden(drawn)).of_tasks
        self._run_checks(checks, begun[0])
        self._run_scenarios(scenarios, begun[1] if begun[1:] else None)
        for task in self._tasks:
            if any(s.status in (DIFFERS, RAISED) and not s.where.startswith("lab")
                   for s in self._scenarios(task)):  # fmt: skip
                self._run_scenarios([name for name, of in listed if of == task])
        for task in self._tasks:
            checks = [check.id for check in self._entries if check.task == task]
            spoilt = any(self.checks[c].get("status") not in ALONE_NO_BETTER for c in checks)
            if spoilt and all(s.status == AGREES for s in self._scenarios(task)):
                self._run_checks(checks)

    @property
    def _tasks(self) -> list[int]:
        return [task.id for task in self.lab.tasks]

    @functools.cached_property
    def _entries(self) -> list[Any]:
        return [check for check in collect_checks(self.lab) if check.task in self._tasks]

    def _scenarios(self, task: int) -> list[ScenarioReport]:
        named = self.task_of_scenario.items()
        return [self.scenarios[name] for name, of in named if of == task and name in self.scenarios]

    def _run_checks(self, items: list[str], first: Answer | None = None) -> None:
        rounds = Rounds(
            lambda some: self._box(self._visible(some)).of_tasks[0],
            lambda item: item.partition("::")[0],
        ).run(items, first)
        for item in items:
            found = rounds.results.get(item) or {"reason": rounds.lost[item]}
            self.checks[item] = {n: text for n, text in found.items() if isinstance(text, str)}

    def _visible(self, items: list[str]) -> dict[str, Any]:
        return {"kind": "visible", "lab": self.lab.key, "items": items}

    def _hidden(self, items: list[str]) -> dict[str, Any]:
        return {"kind": "hidden", "items": items, **self._drawing}

    @property
    def _drawing(self) -> dict[str, Any]:
        return {"lab": self.lab.key, "sources": sources(self.lab), "seeds": self.seeds}

    def _box(self, *tasks: dict[str, Any]) -> Answers:
        if self.left <= 0:
            used_up = f"the submission used up its {self.limits.seconds} seconds"
            return Answers([Answer([], used_up)])
        work = Work(self.lab.key, list(tasks), self.files)
        answers = self.sandbox.run(self.lab, work, self.limits, self.left)
        self.left -= answers.seconds
        return answers

    def _draws(self, names: Iterable[str]) -> dict[str, list[str]]:
        return {name: [f"{name}#{i}" for i in range(len(self.seeds))] for name in names}

    def _run_scenarios(self, names: list[str], among_checks: Answer | None = None) -> None:
        """Run scenarios and have them judged.

        among_checks: what came of them in the process of the checks; what did not come then is
        run now, and `_mark` runs alone what is wrong.
        """
        draws = self._draws(names)
        items = [item for items in draws.values() for item in items]
        rounds = Rounds(
            lambda some: self._box(self._hidden(some)).of_tasks[0],
            lambda item: item.partition("#")[0],
            lambda item: item.partition("#")[0],
        )
        rounds.run(rounds.keep(among_checks, items) if among_checks else items)
        observed = {item: r["data"] for item, r in rounds.results.items() if "data" in r}
        fresh = {i: data for i, data in observed.items() if not self._known(i, data)}
        found = self._judge({"observed": fresh, "items": list(fresh), **self._drawing})
        self._judged |= {item: (fresh[item], verdict) for item, verdict in found.items()}
        agreed = {item: self._judged[item][1] for item in observed}
        for name, items in draws.items():
            self.scenarios[name] = scenario_report(name, [draw(i, rounds, agreed) for i in items])

    def _known(self, item: str, data: Any) -> bool:
        """Whether the same observation has a verdict already, from a run among other tasks."""
        return item in self._judged and json.dumps(self._judged[item][0]) == json.dumps(data)

    def _judge(self, task: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Compare with the reference, in a process that no student's code is in."""
        if not task["items"]:
            return {}
        limits = Limits(item_seconds=REFERENCE_SECONDS)
        answer = self.sandbox.trusted({"kind": "judge", **task}, limits, REFERENCE_SECONDS)
        found = {event["item"]: event for event in answer.events if "item" in event}
        if set(found) != set(task["items"]):
            raise BoxError(f"the reference did not answer: {answer.ended or answer.events[-1:]}")
        return found

    def _task(self, task: Any) -> TaskReport:
        checks = [entry for entry in self._entries if entry.task == task.id]
        return TaskReport(
            task.id,
            task.title,
            float(task.points),
            tuple(
                check_report(entry, self.checks.get(entry.id, {}), self.nothing) for entry in checks
            ),
            () if self.nothing else tuple(self._scenarios(task.id)),
        )
