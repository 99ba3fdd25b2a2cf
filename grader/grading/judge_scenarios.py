"""A submission's scenarios: drawn at its seeds, run in the box, judged by the reference outside."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from grader.checks.kernel_text import ALONE, kernels
from grader.course.lab_toml import Lab
from grader.grading.report import ScenarioReport
from grader.grading.run_items import Result, Rounds
from grader.grading.scenario_list import REFERENCE_SECONDS, listing, sources
from grader.grading.verdicts import draw, scenario_report
from grader.sandbox.job import Answer, BoxError
from grader.sandbox.limits import Limits
from grader.sandbox.sandbox import Sandbox

Task = dict[str, Any]


class Scenarios:
    """The scenarios of one submission and what has come of them; `box` runs a task in the box.

    apart: runs a task in a box of its own, which holds nothing of the submission. files: the
    submission's, of which kernels are taken. hidden: False: there are none, and nothing of them is
    read or sent.
    """

    def __init__(
        self, lab: Lab, seeds: list[int], sandbox: Sandbox, box: Callable[[Task], Answer],
        hidden: bool = True, apart: Callable[[Task], Answer] = lambda task: Answer(),
        files: Mapping[str, bytes] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self.lab, self.seeds, self.sandbox, self.box = lab, seeds, sandbox, box
        self.apart, self.files = apart, files
        self.reports: dict[str, ScenarioReport] = {}
        self._factors = secrets.randbits(63)  # no process of the submission's hears of it
        self._judged: dict[str, tuple[Result, Task]] = {}  # item -> result, verdict
        self.of_task: dict[int, list[str]] = {task.id: [] for task in lab.tasks}
        for name, task in listing(lab, sandbox) if hidden else ():
            if task in self.of_task:
                self.of_task[task].append(name)

    @property
    def names(self) -> list[str]:
        return [name for names in self.of_task.values() for name in names]

    def reports_of(self, task: int) -> list[ScenarioReport]:
        return [self.reports[name] for name in self.of_task[task] if name in self.reports]

    def task(self, names: list[str]) -> Task:
        """What the box is asked to do to run all draws of these scenarios."""
        return self._task([item for name in names for item in self._draws(name)])

    def run(self, names: list[str], among_checks: Answer | None = None) -> None:
        """Run scenarios and have them judged.

        among_checks: what came of them in the process of the checks, where they may have been
        spoilt; what did not come then is run now.
        """
        items = [item for name in names for item in self._draws(name)]
        rounds = Rounds(lambda some: self.box(self._task(some)), _name, _name)
        rounds.run(rounds.keep(among_checks, items) if among_checks else items)
        every = rounds.results.items()
        results = {item: found for item, found in every if "data" in found or "todo" not in found}
        fresh = {item: found for item, found in results.items() if not self._known(item, found)}
        self._judged |= {i: (fresh[i], verdict) for i, verdict in self._judge(fresh).items()}
        agreed = {item: self._judged[item][1] for item in results}
        for name in names:
            draws = [draw(item, rounds, agreed) for item in self._draws(name)]
            self.reports[name] = scenario_report(name, draws)

    def _draws(self, name: str) -> list[str]:
        return [f"{name}#{i}" for i in range(len(self.seeds))]

    def _task(self, items: list[str], kind: str = "hidden") -> Task:
        drawn = {"lab": self.lab.key, "sources": sources(self.lab), "seeds": self.seeds}
        return {"kind": kind, "items": items, **drawn}

    def _known(self, item: str, found: Result) -> bool:
        """Whether the same result has a verdict already, from a run among other tasks."""
        return item in self._judged and json.dumps(self._judged[item][0]) == json.dumps(found)

    def _judge(self, results: dict[str, Result]) -> dict[str, Task]:
        """Compare with the reference, in a process that no student's code is in.

        An answer at which that process is lost differs: it costs neither the others nor a regrade.
        """
        results = results | self._replayed(results)
        found, why = self._verdicts(results) if results else ({}, "")
        for item in results.keys() - found.keys():
            found |= self._verdicts({item: results[item]})[0]
            if item not in found:
                alone, why = self._verdicts({item: {}})  # the reference, with nothing to compare
                if item not in alone:
                    raise BoxError(f"the reference did not answer: {why}")
                found |= {item: {"where": "it could not be judged", **alone[item]}}
        return found

    def _replayed(self, results: dict[str, Result]) -> dict[str, Result]:
        """What the kernels of the submission come to by its plans, each where it had planned."""
        plans = {
            item: found["data"] for item, found in results.items()
            if item.startswith(ALONE) and "data" in found
        }  # fmt: skip
        if not plans:
            return {}
        nothing: dict[str, Result] = {item: {"raised": "no kernel"} for item in plans}
        modules = kernels(self.files, self.lab.package)
        found = self._run_apart(plans, modules)
        for item in plans.keys() - found.keys():  # another one may have ended the process
            found |= self._run_apart({item: plans[item]}, modules)
        return nothing | found

    def _run_apart(self, plans: Task, modules: Task) -> dict[str, Result]:
        task = {**self._task(list(plans), "replay"), "plans": plans, "modules": modules}
        task["factors"] = self._factors
        events = self.apart(task).events
        return {e["item"]: e for e in events if e.get("item") in plans and ("data" in e)}

    def _verdicts(self, results: dict[str, Result]) -> tuple[dict[str, Task], str]:
        """What the process of the reference says of these answers, and how it ended."""
        observed = {item: found["data"] for item, found in results.items() if "data" in found}
        task = {**self._task(list(results), "judge"), "observed": observed}
        task["factors"] = self._factors
        limits = Limits(item_seconds=REFERENCE_SECONDS)
        try:
            answer = self.sandbox.trusted(task, limits, REFERENCE_SECONDS)
        except BoxError as error:
            return {}, str(error)
        found = {event["item"]: event for event in answer.events if "item" in event}
        return found, f"{answer.ended or answer.events[-1:]}"


def _name(item: str) -> str:
    """The scenario of a draw: draws of one are loaded, and lost, together."""
    return item.partition("#")[0]
