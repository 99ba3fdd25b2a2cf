"""How long a check may run before it is taken for an endless loop."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from grader.checks import runaway
from grader.checks.plugin_collect import RUNAWAY_SECONDS, runaway_seconds
from grader.checks.run_checks import Record, Run, fresh_processes, run_checks
from grader.course.errors import LabError
from grader.course.outcome import Status
from tests.lab_course import Course, make_course


@pytest.mark.parametrize(("load", "times"), [(0.1, 1), (1.0, 1), (4.0, 4)])
def test_a_busy_machine_gives_a_check_more_time(
    load: float, times: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load * (os.cpu_count() or 1), 0.0, 0.0))
    assert runaway_seconds() == times * RUNAWAY_SECONDS


def test_where_nothing_says_how_busy_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden() -> None:
        raise OSError("no /proc in this box")

    monkeypatch.setattr(os, "getloadavg", hidden)
    assert runaway_seconds() == RUNAWAY_SECONDS


LOOPS = '''
def add(a: int, b: int) -> int:
    """The sum."""
    while True:
        try:
            a += 1
        except Exception:
            pass
'''
WAITS = """
import threading


class Counter:
    def push(self, n: int) -> int:
        threading.Event().wait()
"""
QUICK = {
    "LOOP_SECONDS = 20.0": "LOOP_SECONDS = 2.0",
    "WORK_SECONDS = 0.5": "WORK_SECONDS = 0.05",
    "LOAD_SECONDS = 40.0": "LOAD_SECONDS = 3.0",
    "self._watch(settings.timeout)": "self._watch(4.0)",
}


SLOW = """
def add(a: int, b: int) -> int:
    for _ in range(1_000_000):
        pass
    return a + b
"""
# As on a machine so busy that a look takes longer than the time between two of them.
BUSY = {
    "TICK = 0.25": "TICK = 0.001",
    "            why = self": "            time.sleep(0.01)\n            why = self",
}


def _changed(course: Course, changes: dict[str, str]) -> None:
    """Change the course's copy of what stops checks."""
    path = course.root / "grader" / "checks" / "runaway.py"
    text = path.read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


@pytest.fixture
def quick(tmp_path: Path) -> Course:
    """A course whose checks are stopped soon."""
    course = make_course(tmp_path, started="1")
    _changed(course, QUICK)
    return course


@pytest.mark.proof
def test_looks_that_take_long_do_not_pile_up(tmp_path: Path) -> None:
    course = make_course(tmp_path, started="1")
    _changed(course, BUSY)
    (course.mine / "sums.py").write_text(SLOW + WAITS)
    assert "10/10" in course.lab("check", "1", "--task", "1").stdout


def test_a_loop_is_told_with_its_place_and_the_next_check_waits_less(quick: Course) -> None:
    (quick.mine / "sums.py").write_text(LOOPS + WAITS)
    done = quick.lab("check", "1", "--task", "1")
    assert re.search(
        r"stopped   did not end in \d s of processor time; add \(nanovllm/tokenization/sums",
        done.stdout,
    )
    assert "Timeout" not in done.stdout
    first, second = map(int, re.findall(r"did not end in (\d+) s", done.stdout))
    assert second < first >= 2  # looks come up to some ticks after their time
    assert "0/10" in done.stdout


def test_a_wait_is_stopped_too_and_says_where(quick: Course) -> None:
    quick.solve("scale.py")
    (quick.mine / "sums.py").write_text(WAITS)
    done = quick.lab("check", "1", "--task", "2")
    assert "waits: nothing has happened for 4 s" in done.stdout
    assert "Counter.push (nanovllm/tokenization/sums.py:7)" in done.stdout
    assert " 8/20" in done.stdout  # the other check of the task runs and earns


def test_a_loop_outside_of_functions_is_stopped(quick: Course) -> None:
    (quick.mine / "sums.py").write_text("while True:\n    pass\n")
    done = quick.lab("check", "1", "--task", "1")
    assert "the code cannot be loaded" in done.stdout
    assert re.search(
        r"did not end in \d s of processor time; <module> \(nanovllm/tokenization/sums.py:",
        " ".join(done.stdout.replace("│", "").split()),
    )
    assert "0/10" in done.stdout


def test_who_exits_while_loading_gets_a_card(quick: Course) -> None:
    (quick.mine / "sums.py").write_text("import sys\nsys.exit('usage: sums')\n")
    done = quick.lab("check", "1")
    assert "the code cannot be loaded" in done.stdout and "SystemExit" in done.stdout
    assert "INTERNALERROR" not in done.stdout + done.stderr
    assert "0/10" in done.stdout


def test_a_thread_left_running_keeps_nobody(quick: Course) -> None:
    quick.solve("sums.py")
    path = quick.mine / "sums.py"
    path.write_text(
        path.read_text() + "\nimport threading, time\n"
        "threading.Thread(target=lambda: time.sleep(1000)).start()\n"
    )
    done = quick.lab("check", "1", "--task", "1", apart=True)
    assert "10/10" in done.stdout
    assert "still running: <lambda> (nanovllm/tokenization/sums.py:" in done.stdout


def test_a_link_leads_to_the_same_course(quick: Course, tmp_path: Path) -> None:
    """By its whole path, as an editor or a cluster's home has it."""
    quick.solve("sums.py")
    link = tmp_path / "link"
    link.symlink_to(quick.root)
    code = f"import sys, pytest; sys.exit(pytest.main(['-q', '{link}/labs/lab01/test_1_add.py']))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=link,
        env=quick.environment,
        capture_output=True,
        text=True,
    )
    assert "task 1" in done.stdout and "10/10" in done.stdout, done.stdout + done.stderr


def test_hypothesis_does_not_run_it_again(quick: Course) -> None:
    (quick.mine / "sums.py").write_text(LOOPS + WAITS)
    (quick.root / "labs" / "lab01" / "test_1_add.py").write_text(
        "import pytest\nfrom hypothesis import given, strategies as st\n"
        "from nanovllm.tokenization.sums import add\n"
        '@pytest.mark.check(task=1, points=10, title="Any")\n'
        "def test_any():\n    given(st.integers())(lambda n: add(n, n))()\n"
    )
    done = quick.lab("check", "1", "--task", "1")
    assert len(re.findall(r"did not end in \d s of processor time", done.stdout)) == 1
    assert "Flaky" not in done.stdout and "Falsifying" not in done.stdout


def test_the_clock_is_not_counted_as_work() -> None:
    """Of checks that count steps of Python, which it interrupts."""
    [record] = fresh_processes(interrupted, [Run("lab08", only="test_work")], 1)
    assert [outcome.status for outcome in record.outcomes] == [Status.PASSED], record.printed


def interrupted(run: Run) -> Record:
    """As on a machine so busy that the clock is looked at all the time."""
    runaway.TICK = 0.02
    return run_checks(run)


def ends_the_fifth(number: int) -> int:
    if number == 4:
        os._exit(7)
    return number


def test_the_exit_code_is_that_of_the_process_while_others_start() -> None:
    """Of 250 such runs 19 told another one, as two threads had asked for it at the same time."""
    for _ in range(40):
        with pytest.raises(LabError, match=r"ended its process \(7\)"):
            list(fresh_processes(ends_the_fifth, range(9), 4))
