"""One run of `python -m grader grade` as a process, watched, and killed half way if asked."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from grader.course.lab_toml import Lab
from grader.course.paths import ROOT

LOOK_SECONDS = 0.5
MEMORY_SECONDS = 2  # to find all of the grader's processes takes a while
LEAVING_SECONDS = 30
WINDOW = 5  # memory is the median over this part of a run


@dataclass(frozen=True)
class Look:
    """Seconds since the start, submissions done, megabytes of all processes and of the first."""

    seconds: float
    done: int
    all_mb: float
    grader_mb: float


@dataclass
class Half:
    """What a run took; `looks` holds what was seen every two seconds."""

    wall: float = 0.0
    status: int | None = None  # None: killed
    printed: str = ""
    done: int = 0
    first_result: float = 0.0  # seconds from the start to the first result of this run
    left: int = 0  # processes that outlived the kill
    looks: list[Look] = field(default_factory=list)

    def memory(self, whose: str) -> dict[str, float]:
        """Megabytes at the start, in the middle and at the end of the grading, and the most.

        Pages that several processes share count once for each.
        """
        first = next((n for n, look in enumerate(self.looks) if look.done > self.looks[0].done), 0)
        sizes = [getattr(look, whose) for look in self.looks[first:]] or [0.0]
        width = max(1, len(sizes) // WINDOW)
        middle = (len(sizes) - width) // 2
        parts = {"start": sizes[:width], "middle": sizes[middle : middle + width],
                 "end": sizes[-width:]}  # fmt: skip
        return {name: statistics.median(part) for name, part in parts.items()} | {
            "most": max(sizes)
        }


def journalled(out: Path) -> list[bytes]:
    """The whole lines of the journal: one a result."""
    path = out / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [line for line in lines if line.endswith(b"\n")]


class Done:
    """Counts the lines of a journal as they come, without reading any of them twice."""

    def __init__(self, out: Path) -> None:
        self.path, self.place, self.lines = out / "journal.jsonl", 0, 0

    def count(self) -> int:
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self.place)
                fresh = file.read()
            self.place += len(fresh)
            self.lines += fresh.count(b"\n")
        return self.lines


def grade(
    folder: Path, lab: Lab, jobs: int, secret: Path, out: Path, kill_at: int | None = None
) -> Half:
    """Grade a folder; at `kill_at` results the grader's whole process group is killed."""
    command = [sys.executable, "-m", "grader", "grade", str(folder), "--lab", lab.key]
    command += ["--jobs", str(jobs), "--secret", str(secret), "--out", str(out)]
    found, start, done, family = Half(), time.monotonic(), Done(out), []
    before = done.count()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            while not _ended(process, found):
                time.sleep(LOOK_SECONDS)
                found.done = done.count()
                seconds = time.monotonic() - start
                if found.done > before and not found.first_result:
                    found.first_result = seconds
                at_end = kill_at is not None and found.done >= kill_at
                if at_end or seconds > MEMORY_SECONDS * len(found.looks):
                    family = _look(process.pid, found, seconds)
                if at_end:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                    found.left = len(psutil.wait_procs(family, LEAVING_SECONDS)[1])
                    found.done = len(journalled(out))
                    break
        finally:
            if process.returncode is None:  # we were interrupted: leave no grader behind
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        found.wall = time.monotonic() - start
        said.seek(0)
        found.printed = said.read().decode("utf-8", "replace")
    if kill_at is not None:
        assert found.status is None, f"it ended before it was killed: {found.printed}"
        assert not found.left, f"{found.left} processes outlived the grader"
    return found


def _ended(process: subprocess.Popen, found: Half) -> bool:
    """Whether it has ended."""
    found.status = process.poll()
    return found.status is not None


def _look(pid: int, found: Half, seconds: float) -> list[psutil.Process]:
    """Note the memory of a process and all below it; these processes."""
    family, sizes = [], []
    with contextlib.suppress(psutil.NoSuchProcess):
        top = psutil.Process(pid)
        family = [top, *top.children(recursive=True)]
    for one in family:
        with contextlib.suppress(psutil.Error):
            sizes.append(one.memory_info().rss / 2**20)
    if sizes:
        found.looks.append(Look(seconds, found.done, sum(sizes), sizes[0]))
    return family
