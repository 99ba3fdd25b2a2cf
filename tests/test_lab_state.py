"""`.lab/state.json`: whole at all times, shared by processes, mended when corrupt."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from grader.student_files import lab_state
from tests.lab_course import ALL_PASS, Course, make_course


@pytest.fixture
def course(tmp_path: Path) -> Course:
    return make_course(tmp_path, started="1")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"labs": 3}',
        '{"labs": {"lab01": {}}}',
        "\x00\x01",
        "[" * 100_000,
        '{"labs": {"lab01": {"started": "", "results": {"isolated": {"a": {"status": "great"}}},'
        ' "hints": {}, "unlocked": [], "seconds": {}}}}',
        '{"last": {"at": "noon"}}',
    ],
)
def test_a_corrupt_file_is_kept_and_a_fresh_one_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("NANOVLLM_STATE", str(tmp_path))
    (tmp_path / "state.json").write_text(text)
    loaded = lab_state.load()
    assert loaded.labs == {}
    assert "cannot be used" in loaded.notice
    assert [path.read_text() for path in tmp_path.glob("state.json.broken-*")] == [text]
    assert lab_state.load().notice == ""


def test_the_board_goes_on_after_a_corrupt_file(course: Course) -> None:
    course.state_file.write_text("{")
    done = course.lab()
    assert done.returncode == 0
    assert len(done.stderr.strip().splitlines()) == 1
    assert "it is kept as state.json.broken-" in done.stderr
    course.record(**ALL_PASS)
    assert "30/30" in course.lab().stdout


def test_the_latest_outcome_of_each_check_is_kept(course: Course) -> None:
    course.record(test_add="failed", test_push="todo")
    course.record(test_add="passed")
    course.record("mine", test_add="failed")
    results = course.records["labs"]["lab01"]["results"]
    statuses = {
        name.rpartition("::")[2]: one["status"] for name, one in results["isolated"].items()
    }
    assert statuses == {"test_add": "passed", "test_push": "todo"}
    assert [one["status"] for one in results["mine"].values()] == ["failed"]


def test_many_processes_lose_nothing(course: Course) -> None:
    code = (
        "import sys; from grader import state\n"
        "for n in range(10): state.record_hint(f'{sys.argv[1]}-{n}', 'lab01', 1)\n"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(number)], cwd=course.root, env=course.environment
        )
        for number in range(4)
    ]
    assert [process.wait(timeout=60) for process in running] == [0] * 4
    assert len(course.records["labs"]["lab01"]["hints"]) == 40
    assert not list(course.state_file.parent.glob("*.tmp"))


def test_a_reader_never_meets_half_a_file(course: Course) -> None:
    code = (
        "from grader import state\n"
        "for n in range(20): state.record_hint('x' * 50_000 + str(n), 'lab01', 1)\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", code], cwd=course.root, env=course.environment)
    while writer.poll() is None:
        json.loads(course.state_file.read_text())
    assert writer.returncode == 0


def test_a_run_is_told_when_it_cannot_be_recorded(course: Course) -> None:
    (course.root / "file").write_text("")
    nowhere = str(course.root / "file" / "state")
    said = course.python(
        "from grader import state\nprint(state.record_run('lab01', 'mine', [], ''))",
        NANOVLLM_STATE=nowhere,
    )
    assert said.startswith("this is not recorded on the board")
    shown = course.lab(NANOVLLM_STATE=nowhere)
    assert shown.returncode == 0
    assert "nothing can be recorded" in shown.stderr
    refused = course.lab("hint", "1", "1", "--yes", NANOVLLM_STATE=nowhere)
    assert refused.returncode == 2
    assert "No hint was taken" in refused.stderr
    assert "weak" not in refused.stdout


def test_another_folder_can_hold_the_state(course: Course, tmp_path: Path) -> None:
    folder = tmp_path / "records"
    course.lab("hint", "1", "1", "--yes", NANOVLLM_STATE=str(folder))
    assert json.loads((folder / "state.json").read_text())["labs"]["lab01"]["hints"]
    assert not course.records["labs"]["lab01"]["hints"]
