"""The corpus of cheats: each earns what its honest part deserves and harms nobody else."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from grader.course.paths import ROOT
from grader.grading import LabReport, Sandbox, grade_lab, left_out
from grader.grading.batch import grade_class
from grader.grading.class_submissions import discover
from grader.grading.grading_toml import Config
from grader.grading.journal import Journal
from grader.grading.report_text import lab_html, lab_text
from grader.sandbox.memory_use import descendants
from tests.grading_corpus import (
    CHEATS,
    FULL,
    HONEST,
    LAB,
    LIMITS,
    SECRET,
    boxed,
    write_cheat,
    write_solved,
)  # fmt: skip

MARK = "cheat-was-here"


@pytest.fixture(scope="module")
def others() -> set[int]:
    """Boxes that tests before this one keep until their process ends."""
    return _boxes()


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory, others: set[int]) -> dict[str, LabReport]:
    """The whole corpus graded as one class, with honest students before and after the cheats."""
    folder = tmp_path_factory.mktemp("class")
    for name in ("a_honest", "zz_honest"):
        write_solved(folder / name, "budget.py", "request.py")
    for cheat in CHEATS.glob("*.py"):
        write_cheat(folder / cheat.stem, cheat)
    journal = Journal(tmp_path_factory.mktemp("results") / "journal.jsonl")
    with Sandbox.open() as sandbox:
        boxed(sandbox)
        found = grade_class(
            discover(folder), LAB, SECRET, Config(limits=LIMITS), sandbox, journal, jobs=3
        )
        reports = {one.handed_in.student: one.report for one in found}
        for name in ("again", "and_again"):  # in the process that the one before it was in
            cheat = folder / "marks_for_the_next"
            reports[name] = grade_lab(cheat, LAB, name, SECRET, LIMITS, sandbox)
    journal.close()
    return reports


def test_the_corpus(graded: dict[str, LabReport], others: set[int]) -> None:
    """One test for the whole run: it is made once, in whichever process of xdist has it."""
    expected = dict.fromkeys((path.stem for path in CHEATS.glob("*.py")), HONEST)
    expected |= {"a_honest": FULL, "zz_honest": FULL, "again": HONEST, "and_again": HONEST}
    assert len(expected) >= 60
    said = {
        name: [task.reason for task in report.tasks.values()] for name, report in graded.items()
    }
    points = {name: report.points for name, report in graded.items()}
    assert points == expected, {n: said[n] for n in expected if points.get(n) != expected[n]}
    assert not any(report.lost for report in graded.values())
    _nothing_came_out(graded)
    _nothing_is_left(others)


def _nothing_came_out(graded: dict[str, LabReport]) -> None:
    for name, report in graded.items():
        for text in (lab_text(report), lab_html(report)):
            assert MARK not in text, name
            assert left_out.shown(text, ()) == text, name
            assert "HIDDEN" not in text and "status 77" not in text, name
            assert "<script" not in text or text.startswith("lab"), name
            assert "\x1b" not in text and "\u202e" not in text, name


def _nothing_is_left(others: set[int]) -> None:
    folders = [ROOT, ROOT / "labs", LAB.folder, ROOT / "grader", Path.home(), Path("/dev/shm"),
               Path("/tmp"), Path("/var/tmp"), Path(tempfile.gettempdir()), Path("/")]  # fmt: skip
    found = [path for folder in folders for path in folder.glob(f"*{MARK}*")]
    found += [path for path in LAB.folder.glob("*.py") if MARK in path.read_text("utf-8")]
    assert not found
    device = os.stat("/dev/full")
    assert (device.st_mode & 0o777, device.st_mtime != 77) == (0o666, True), "marked for ever"
    assert not _boxes() - others, "processes of the box outlive it"


def _boxes() -> set[int]:
    """Worker processes below this one."""
    return {pid for pid in descendants(os.getpid()) if b"sandbox.forkserver_main" in _command(pid)}


def _command(pid: int) -> bytes:
    try:
        return Path("/proc", str(pid), "cmdline").read_bytes()
    except OSError:
        return b""
