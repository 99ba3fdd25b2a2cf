"""Verdicts on scenarios: where the reference raises too, the draw does not count."""

from __future__ import annotations

from typing import Any

import pytest

from grader.checks import observation_json
from grader.grading import Sandbox, judge_scenarios
from grader.grading.judge_scenarios import Scenarios
from grader.grading.report import AGREES, BROKEN, DIFFERS, RAISED
from grader.sandbox import job_scenarios
from grader.sandbox.job import Answer
from tests.grading_corpus import LAB

NAMES = {"fine": 1, "raises": 1, "bare": 3, "unwritten": 3}
ONE = observation_json.encode(1)


class Scenario:
    def __init__(self, name: str) -> None:
        self.name = name

    def observe(self, nanovllm: Any, seed: int) -> int:
        if self.name == "raises":
            raise ValueError("these inputs break the reference")
        return 1


class Reference(Sandbox):
    """What the trusted process answers, from the real `judge`, here."""

    def trusted(self, task: dict[str, Any], limits: Any, seconds: float) -> Answer:
        answer = Answer()
        job_scenarios.judge(task, answer.events.append)
        return answer


@pytest.fixture(autouse=True)
def reference(monkeypatch: pytest.MonkeyPatch) -> None:
    def items(task: dict[str, Any]) -> list:
        return [(item, Scenario(item.partition("#")[0]), 1) for item in task["items"]]

    monkeypatch.setattr(job_scenarios, "_items", items)
    monkeypatch.setattr(judge_scenarios, "listing", lambda lab, sandbox: tuple(NAMES.items()))


def verdicts(answers: dict[str, dict[str, Any]]) -> dict[str, str]:
    def box(task: dict[str, Any]) -> Answer:
        found = [{"item": item, **answers[item.partition("#")[0]]} for item in task["items"]]
        return Answer([*found, {"done": True}])

    scenarios = Scenarios(LAB, [1, 2], Reference(), box)
    scenarios.run(scenarios.names)
    return {name: report.status for name, report in scenarios.reports.items()}


def test_what_raises_at_the_reference_too_does_not_count() -> None:
    todo = {"raised": "NotImplementedError", "todo": "lab04 task 3: ..."}
    raised = {"raised": "ValueError"}
    found = verdicts({"fine": {"data": ONE}, "raises": raised, "bare": raised, "unwritten": todo})
    assert found == {"fine": AGREES, "raises": BROKEN, "bare": RAISED, "unwritten": RAISED}


def test_forged_results_are_judged_by_their_data() -> None:
    two = {
        "data": observation_json.encode(2),
        "todo": "",
        "agrees": True,
        "broken": "the reference raised",
    }
    found = verdicts({"fine": two, "raises": {"data": ONE}, "bare": {}, "unwritten": {"data": ONE}})
    assert found == {"fine": DIFFERS, "raises": BROKEN, "bare": RAISED, "unwritten": AGREES}
