"""How long labs take: the rule, what a class's packs say, and which task the time belongs to."""

from __future__ import annotations

import json
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from grader.authoring import hours
from grader.course.lab_toml import Lab, find_lab
from grader.course.outcome import Outcome, Status
from grader.student_files import lab_folder, lab_state, work_time
from grader.student_files.state_records import State


@pytest.mark.few(3)
def test_the_rule_counts_words_and_lines_by_difficulty(lab: Lab) -> None:
    lines = hours.solution_lines(lab)
    assert set(lines) == {task.id for task in lab.tasks}
    hard, easy = (
        hours.estimate(replace(lab, tasks=tuple(replace(t, difficulty=d) for t in lab.tasks)))
        for d in (3, 1)
    )
    assert all(easy[task] <= hard[task] and easy[task] % hours.STEP == 0 for task in lines)
    if any(task.difficulty for task in lab.tasks):
        assert {task.id: task.minutes for task in lab.tasks} == hours.estimate(lab)
    else:
        assert sum(hours.estimate(lab).values()) == lab.minutes  # lab.toml says them itself


def _pack(path: Path, data: object) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", json.dumps(data))


def test_medians_of_a_class(tmp_path: Path) -> None:
    for number, seconds in enumerate((600, 1200, 6000)):
        folder = tmp_path / f"student{number}"
        folder.mkdir()
        _pack(folder / "lab02.zip", {"lab": "lab02", "seconds": {"1": seconds, "2": 0}})
    _pack(tmp_path / "old.zip", {"lab": "lab02"})
    _pack(tmp_path / "odd.zip", {"lab": "lab02", "seconds": {"1": "many", "x": 3}})
    (tmp_path / "broken.zip").write_bytes(b"no zip")
    assert hours.medians(tmp_path) == {"lab02": {1: (20.0, 3)}}


@pytest.mark.parametrize(
    ("ran", "saves", "last", "wanted"),
    [
        ({3}, [("lab02", 2)], 1, 3),  # the checks of one task ran
        ({1, 2, 3}, [("lab02", 2), ("lab01", 1)], 1, 2),  # else the file that was saved
        ({1, 2, 3}, [], 3, 3),  # else what was worked on before
        ({1, 2, 3}, [], 0, 1),
    ],
)
def test_time_goes_to_the_task_that_was_worked_on(
    ran: set[int], saves: list, last: int, wanted: int
) -> None:
    lab = find_lab(2)
    records = State(last_at=0.0, last_lab="lab02" if last else "", last_task=last)
    events = [work_time.Event(10.0 + i, *event) for i, event in enumerate(reversed(saves))]
    assert lab_state._worked_on(records, lab, ran, events) == [wanted]


def test_what_is_saved_at_once_shares_the_time() -> None:
    """A whole lab written before its first save is no work on task 1 alone."""
    saves = [work_time.Event(600.0 + task / 10, "lab02", task) for task in (1, 2, 3)]
    later = work_time.Event(700.0, "lab02", 3)
    spent = work_time.active_seconds(0.0, [*saves, later])
    expected = {("lab02", 1): 200.1, ("lab02", 2): 200.1, ("lab02", 3): 299.8}
    assert spent == pytest.approx(expected)


def test_files_with_old_times_count_for_what_they_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NANOVLLM_STATE", str(tmp_path))

    def run(**statuses: Status) -> dict[int, float]:
        outcomes = [Outcome(c, "lab02", int(c[1]), "t", 1, one) for c, one in statuses.items()]
        lab_state.record_run("lab02", "isolated", outcomes, "d")
        return lab_state.load().labs["lab02"].seconds

    with lab_state.editing() as state:
        state.last_at = time.time() - 600
    first = run(t1=Status.TODO, t2=Status.TODO, t3=Status.BLOCKED)
    assert list(first) == [1]  # nothing is written yet: the first task is being read
    with lab_state.editing() as state:
        state.last_at = time.time() - 600
    second = run(t1=Status.TODO, t2=Status.PASSED, t3=Status.FAILED)
    assert second[1] == first[1]
    assert second[2] == second[3] == pytest.approx(300, abs=5)


def test_time_before_a_lab_starts_is_of_the_lab_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a task's number that the new lab does not have is not its own."""
    monkeypatch.setenv("NANOVLLM_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("NANOVLLM_MINE", str(tmp_path / "mine"))
    lab_folder.start(find_lab(1))
    with lab_state.editing() as state:
        state.last_at, state.last_lab, state.last_task = time.time() - 600, "lab01", 6
    (tmp_path / "mine" / "tokenization" / "tensors.py").touch()
    lab_folder.start(find_lab(2))
    found = lab_state.load()
    assert sum(found.labs["lab01"].seconds.values()) == pytest.approx(600, abs=30)
    assert (found.last_lab, found.last_task) == ("lab02", 0)


def test_the_last_task_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANOVLLM_STATE", str(tmp_path))
    lab = find_lab(2)
    lab_state.record_run(
        "lab02", "isolated", [Outcome("c", "lab02", 3, "t", 1, Status.FAILED)], "d"
    )
    assert lab_state.load().last_task == 3
    assert lab_state.load().last_at <= time.time()
    assert lab.key in lab_state.load().labs
