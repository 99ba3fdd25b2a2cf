"""The levels of the sandbox, regrades, and a grader that is killed half way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from grader.course.paths import ROOT
from grader.grading import Sandbox, grade_lab
from grader.grading.grade import _memory
from grader.grading.report_text import lab_html, lab_text
from grader.sandbox import forkserver, landlock
from grader.sandbox.levels import UNSANDBOXED
from tests.grading_corpus import (
    CHEATS,
    FULL,
    HONEST,
    LAB,
    LIMITS,
    SECRET,
    write_cheat,
    write_solved,
)

QUIET = ["import_the_reference", "secrets_of_others", "left_behind"]
PROGRAM = """
import sys
from pathlib import Path
from grader.grading import Sandbox
from grader.grading.batch import grade_class
from grader.grading.grading_toml import Config
from grader.grading.class_submissions import discover
from grader.grading.journal import Journal
from tests.grading_corpus import LAB, LIMITS, SECRET
journal = Journal(Path(sys.argv[2]))
with Sandbox.open() as box:
    found = grade_class(discover(Path(sys.argv[1])), LAB, SECRET, Config(LIMITS), box, journal, 1)
    for one in found:
        print(one.handed_in.student, one.known, one.report.points, flush=True)
"""


def start(folder: Path, journal: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, str(folder), str(journal)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


@pytest.mark.skipif(sys.platform != "linux", reason="macOS has resource limits alone")
def test_killed_half_way_and_run_again(tmp_path: Path) -> None:
    students = ["ada", "bob", "cyd", "dan"]
    for name in students:
        write_solved(tmp_path / "class" / name, "budget.py", *["request.py"] * (name == "bob"))
    journal = tmp_path / "journal.jsonl"
    first = start(tmp_path / "class", journal)
    assert first.stdout is not None
    seen = [first.stdout.readline().split()[0] for _ in range(2)]
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    kept = journal.read_bytes()
    again = start(tmp_path / "class", journal)
    lines = [line.split() for line in again.communicate()[0].splitlines()]
    assert sorted(name for name, *_ in lines) == students
    assert {name for name, known, _ in lines if known == "True"} >= set(seen)
    points = {name: float(points) for name, _, points in lines}
    assert points == {"ada": HONEST, "bob": FULL, "cyd": HONEST, "dan": HONEST}
    whole = journal.read_bytes()
    assert whole.startswith(kept[: kept.rfind(b"\n") + 1]), "what was there stays as it was"
    assert len(whole.splitlines()) == len(students), "nobody was graded twice"


@pytest.mark.proof
@pytest.mark.skipif(sys.platform != "linux", reason="macOS has resource limits alone")
def test_landlock_holds_too(tmp_path: Path) -> None:
    with Sandbox.open("landlock") as box:
        if landlock.version() < 1:
            assert not box._holds("landlock", LAB)
            assert "no landlock" in box.tried[0]
            return
        if not box._holds("landlock", LAB):
            assert "a process in it could" in box.tried[0], "an old landlock, and the probe says so"
            return
        for name in QUIET:
            write_cheat(tmp_path / name, CHEATS / f"{name}.py")
            report = grade_lab(tmp_path / name, LAB, name, SECRET, LIMITS, box)
            assert (report.points, report.sandbox) == (HONEST, "landlock"), lab_text(report)
            assert "cheat-was-here" not in lab_text(report)
        write_solved(tmp_path / "honest", "budget.py", "request.py")
        assert grade_lab(tmp_path / "honest", LAB, "ada", SECRET, LIMITS, box).points == FULL


def test_limits_alone_are_said_in_every_report_and_a_regrade_is_identical(tmp_path: Path) -> None:
    write_solved(tmp_path / "ada", "budget.py", "request.py")
    with Sandbox.open("limits") as box:
        first = grade_lab(tmp_path / "ada", LAB, "ada", SECRET, LIMITS, box)
        assert grade_lab(tmp_path / "ada", LAB, "ada", SECRET, LIMITS, box) is first
        _memory.clear()
        again = grade_lab(tmp_path / "ada", LAB, "ada", SECRET, LIMITS, box)
    assert first.unsandboxed and first.points == FULL
    assert UNSANDBOXED in first.warnings
    assert "UNSANDBOXED" in lab_text(first) and "UNSANDBOXED" in lab_html(first)
    assert again is not first and again.tasks == first.tasks and again.key == first.key


@pytest.mark.skipif(sys.platform != "linux", reason="macOS has resource limits alone")
def test_a_bubblewrap_that_cannot_run_is_told_and_the_next_level_grades(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho no user namespaces here >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setattr(forkserver, "bubblewrap", lambda lab: [str(fake)])
    write_solved(tmp_path / "ada", "budget.py", "request.py")
    with Sandbox.open() as box:
        report = grade_lab(tmp_path / "ada", LAB, "ada", SECRET, LIMITS, box)
        assert (report.sandbox, report.points) == (box.level, FULL), lab_text(report)
        assert box.level in ("landlock", "limits")
        assert "bubblewrap cannot be used" in box.tried[0]
        assert "no user namespaces here" in box.tried[0]


@pytest.mark.skipif(sys.platform != "linux", reason="macOS has resource limits alone")
def test_a_killed_fork_server_loses_no_submission(tmp_path: Path) -> None:
    write_solved(tmp_path / "ada", "budget.py", "request.py")
    with Sandbox.open() as box:
        box.probe(LAB)
        for server in [*box._servers.values()]:
            server._process.kill()
        _memory.clear()
        assert grade_lab(tmp_path / "ada", LAB, "bob", SECRET, LIMITS, box).points == FULL
