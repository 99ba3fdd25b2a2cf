"""`lab watch` in a real terminal: saves, keys, and the terminal put back."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab_course import Course, make_course

COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class Screen:
    """`lab watch` on a pseudo-terminal."""

    def __init__(self, course: Course, *words: str) -> None:
        self.master, self.slave = pty.openpty()
        self.before = termios.tcgetattr(self.slave)
        self.text = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "grader.student.lab_command", "watch", *words],
            cwd=course.root,
            env=course.environment,
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            start_new_session=True,
            preexec_fn=self._control,
        )

    def _control(self) -> None:
        import fcntl

        fcntl.ioctl(self.slave, termios.TIOCSCTTY, 0)

    def wait_for(self, pattern: str, seconds: float = 180) -> str:
        """Read on until the pattern appears; forgets what came before it."""
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.text)):
            assert time.monotonic() < deadline, f"no {pattern!r} in {self.text!r}"
            if select.select([self.master], [], [], 0.2)[0]:
                try:
                    self._read()
                except OSError:
                    pytest.fail(f"ended without {pattern!r}: {self.text!r}")
        self.text = self.text[found.end() :]
        return found[0]

    def _read(self) -> None:
        text = os.read(self.master, 65536).decode(errors="replace")
        self.text = COLOURS.sub("", self.text + text)

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def end(self, seconds: float = 60) -> int:
        """The exit code, with the output drained so that the program can end."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < deadline:
            if select.select([self.master], [], [], 0.1)[0]:
                self._read()
        return self.process.wait(timeout=1)

    @property
    def restored(self) -> bool:
        return termios.tcgetattr(self.slave) == self.before

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def course(tmp_path: Path) -> Course:
    return make_course(tmp_path, started="1")


@pytest.fixture
def screen(course: Course) -> Iterator[Screen]:
    opened = Screen(course, "1")
    yield opened
    opened.close()


def test_saves_and_keys(course: Course, screen: Screen) -> None:
    screen.wait_for("q quit")
    assert not screen.restored
    course.solve("sums.py")
    screen.wait_for(r"saved sums\.py")
    screen.wait_for(r"task 1 .*10/10")
    screen.wait_for("q quit")
    screen.press("l")
    screen.wait_for("test_double")
    screen.wait_for("q quit")
    screen.press("h")
    screen.wait_for(r"Hint 1 of 3 costs .*\[y/N\]")
    screen.press("y\n")
    screen.wait_for(r"1\. weak")
    screen.wait_for("q quit")
    screen.press("r")
    screen.wait_for(r"Put back the stubs of Counter\.push, double")
    screen.press("y\n")
    screen.wait_for("To get your version back")
    screen.wait_for(r"saved sums\.py")
    screen.press("q")
    assert screen.end() == 0
    assert screen.restored
    sums = (course.mine / "sums.py").read_text()
    assert "return a + b" in sums
    assert "lab01 task 2: push" in sums


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_put_the_terminal_back(screen: Screen, number: int, code: int) -> None:
    screen.wait_for("q quit")
    screen.process.send_signal(number)
    assert screen.end() == code
    assert screen.restored
    assert "Traceback" not in screen.text


def test_control_c_ends_it_during_a_run(screen: Screen) -> None:
    screen.wait_for("Adding up")
    time.sleep(0.5)
    screen.press("\x03")
    assert screen.end() == 0
    assert screen.restored
    assert "Traceback" not in screen.text


def test_a_save_during_a_run_begins_it_anew(course: Course, screen: Screen) -> None:
    screen.wait_for("q quit")
    endless = "import time\nprint('started', flush=True)\ntime.sleep(1000)\n"
    (course.mine / "sums.py").write_text(endless)
    screen.wait_for(r"saved sums\.py")
    time.sleep(2)
    course.solve("sums.py")
    screen.wait_for(r"saved sums\.py")
    screen.wait_for(r"task 1 .*10/10")


def test_the_folder_taken_away_is_told(course: Course, screen: Screen) -> None:
    screen.wait_for("q quit")
    course.mine.rename(course.root / "away")
    screen.wait_for("can no longer be watched")
    assert screen.end() == 2
    assert screen.restored


def test_with_mine_saves_in_all_labs_count_and_of_code_alone(course: Course) -> None:
    screen = Screen(course, "--mine")
    try:
        screen.wait_for("q quit")
        (course.mine / "debug.txt").write_text("written by the code that runs")
        (course.mine.parent / "other.py").write_text("x = 1\n")
        assert "debug" not in screen.wait_for(r"saved .*\n")
    finally:
        screen.close()


def test_without_a_terminal_it_watches_without_keys(course: Course) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "grader.student.lab_command", "watch"],
        cwd=course.root,
        env=course.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "Ctrl-C quit" in line:
            break
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 0
    assert any("0/10" in line for line in lines)


def test_watch_refuses_a_lab_not_started(course: Course) -> None:
    assert "lab02 is not started" in course.refused("watch", "2")
