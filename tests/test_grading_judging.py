"""What came out of the box and cannot be judged differs; no text from after a scenario is shown."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grader.checks import observation_json
from grader.grading import Limits, Sandbox
from grader.grading.grade_one import Marking
from grader.grading.judge_scenarios import Scenarios
from grader.grading.submission import Submission
from grader.sandbox import cgroup, talk
from grader.sandbox.job import Answer, Answers, BoxError
from grader.sandbox.memory_use import FILES, disk_excess
from grader.sandbox.scratch_folder import remove
from tests.grading_corpus import LAB


class Judge:
    """In the sandbox's place: a reference that is lost at an answer which says so."""

    def __init__(self, broken: bool = False) -> None:
        self.broken, self.asked = broken, 0

    def trusted(self, task: dict[str, Any], limits: Limits, seconds: float) -> Answer:
        if task["kind"] == "listing":
            return Answer([{"scenario": name, "task": 1} for name in ("good", "bad")])
        self.asked += 1
        events: list[dict[str, Any]] = []
        for item in task["items"]:
            if self.broken or task["observed"].get(item) == "kills":
                return Answer(events, "it was ended by SIGKILL")
            events.append({"item": item, "agrees": item in task["observed"], "where": ""})
        return Answer([*events, {"done": True}])


def judged(judge: Any, **data: str) -> dict[str, str]:
    events = [{"item": f"{name}#0", "data": said} for name, said in data.items()]
    scenarios = Scenarios(LAB, [1], judge, lambda task: Answer([*events, {"done": True}]))
    scenarios.run(scenarios.names)
    return {name: report.status for name, report in scenarios.reports.items()}


def test_an_answer_at_which_the_judge_is_lost_differs_and_costs_no_other() -> None:
    assert judged(Judge(), good="fine", bad="fine") == {"good": "agrees", "bad": "agrees"}
    assert judged(Judge(), good="fine", bad="kills") == {"good": "agrees", "bad": "differs"}
    assert judged(Judge(), bad="fine", good="kills") == {"good": "differs", "bad": "agrees"}


def test_a_reference_that_does_not_answer_is_the_graders_trouble() -> None:
    with pytest.raises(BoxError, match="SIGKILL"):
        judged(Judge(broken=True), good="fine", bad="fine")


@pytest.mark.parametrize("depth", [3, 140, 200, 930, 976, 5000])
def test_an_event_that_whoever_passes_it_on_could_not_write_is_none(depth: int) -> None:
    line = b'{"item": "a", "data": ' + b"[" * depth + b"]" * depth + b"}"
    event = talk._event(line)
    assert (event is not None) == (depth < talk.DEPTH - 1)
    assert event is None or json.loads(json.dumps({"observed": {"a": event}}))


def test_the_deepest_observation_passes() -> None:
    deepest: Any = np.float64(2.5)
    for _ in range(observation_json.DEPTH - 1):
        deepest = {"a": deepest}
    event = {"item": "a", "data": observation_json.encode(deepest)}
    assert talk._event(json.dumps(event).encode()) == event


@pytest.mark.parametrize("kind", ["array", "tensor"])
@pytest.mark.parametrize("name", ["i4," * 2_000_000, [["a" * 5_000_000, "i4"]], {"names": []}, 4])
def test_a_type_of_numbers_that_takes_long_to_read_is_refused(kind: str, name: Any) -> None:
    start = time.process_time()
    with pytest.raises(observation_json.WireError):
        observation_json.decode({kind: name, "shape": [1], "raw": ""})
    assert time.process_time() - start < 1


class ToldByACard(Marking):
    """Runs without a box: the check fails at first, and after the scenario as `later` says."""

    def __init__(self, later: dict[str, str]) -> None:
        handed_in = Submission({"x.py": b""}, ())
        super().__init__(handed_in, LAB, "ada", [1], Limits(), Sandbox("limits"))
        self.runs = [{"status": "failed", "card": "mine", "reason": "first"}, later]

    def _box(self, *tasks: dict[str, Any]) -> list[Answer]:
        said = self.runs.pop(0) if len(self.runs) > 1 else self.runs[0]
        return [Answer([{"item": item, **said} for item in tasks[0]["items"]] + [{"done": True}])]


class Withheld(ToldByACard):
    """The first process sends no result of one check, and does the hidden task after it."""

    def _box(self, *tasks: dict[str, Any]) -> list[Answer]:
        answers = super()._box(*tasks)
        if len(tasks) == 2:
            del answers[0].events[0]
            answers.append(Answer())
        return answers


class TooMuch(Sandbox):
    """Whose every process sends 100 MB of results."""

    def run(self, *_: Any) -> Answers:
        return Answers([Answer([{"done": True}], cost=100 << 20)])


class Agreed:
    def __init__(self, *_: Any) -> None:
        self.names: list[str] = []

    def task(self, names: list[str]) -> dict[str, Any]:
        return {}

    def run(self, *_: Any) -> None:
        pass

    def reports_of(self, task: int) -> list[Any]:
        return []  # so that all agree


@pytest.mark.parametrize("status", ["failed", "passed"])
def test_no_text_of_a_check_that_ran_after_a_scenario_is_shown(
    status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grader.grading.grade_one.Scenarios", Agreed)
    marking = ToldByACard({"status": status, "card": "HIDDEN", "reason": "HIDDEN"})
    report = marking.report("")
    checks = [check for task in report.tasks.values() for check in task.checks]
    assert {check.status for check in checks} == {status}
    texts = {check.card for check in checks} | {check.reason for check in checks}
    assert texts == ({"mine", "first"} if status == "failed" else {""})


def test_no_text_of_a_check_whose_first_result_was_withheld_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("grader.grading.grade_one.Scenarios", Agreed)
    report = Withheld({"status": "failed", "card": "HIDDEN", "reason": "HIDDEN"}).report("")
    checks = [check for task in report.tasks.values() for check in task.checks]
    assert {check.status for check in checks} == {"failed"}
    assert [check.card for check in checks].count("mine") == len(checks) - 1
    assert "HIDDEN" not in "".join(check.card + check.reason for check in checks)


def test_all_processes_of_a_submission_send_no_more_than_four_may() -> None:
    marking = Marking(Submission({"x.py": b""}, ()), LAB, "ada", [1], Limits(), TooMuch("limits"))
    assert [marking._box({})[0].ended for _ in range(3)] == [
        "", "", "the submission sent more than 128 MB of results",
    ]  # fmt: skip


def test_what_lies_in_a_list_costs_what_it_takes() -> None:
    here, there = socket.socketpair()
    with here, there, cgroup.group(100, 10) as group:
        reader = talk.Talk(here, there, Limits(), 9.0, group)
        had = reader._left
        reader._take(b'{"data": [' + b'"\xc4\x81",' * 100_000 + b"1]}\n")
        assert had - reader._left > 6 << 20


@pytest.mark.parametrize(("deep", "name"), [(1100, "d"), (22, "n" * 200)])
def test_folders_that_go_deep_are_too_much(tmp_path: Path, deep: int, name: str) -> None:
    home = os.open(".", os.O_RDONLY)
    try:
        os.chdir(tmp_path)
        for _ in range(deep):
            os.mkdir(name)
            os.chdir(name)
    finally:
        os.chdir(home)
        os.close(home)
    assert disk_excess(str(tmp_path), 4)
    remove(tmp_path)


def test_many_files_are_too_much_as_one_large_one_is(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}").write_bytes(bytes(1 << 20))
    assert not disk_excess(str(tmp_path), 4) and not disk_excess("", 0)
    assert "more than 2 MB" in disk_excess(str(tmp_path), 2)
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(1 << 40)
    assert not disk_excess(str(tmp_path), 4), "a hole takes no room"
    for number in range(FILES):
        (tmp_path / f"empty{number}").touch()
    assert disk_excess(str(tmp_path), 4)
