"""Running a lab's checks with pytest in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress

from grader.course.errors import LabError
from grader.course.lab_toml import Lab
from grader.course.paths import ROOT


def command(lab: Lab, task: int | None = None, mine: bool = False) -> list[str]:
    """The pytest command of a lab's checks, or of one task's."""
    targets = [f"labs/{lab.key}"]
    if task is not None:
        lab.task(task)
        files = sorted(lab.folder.glob(f"test_{task}_*.py"))
        if not files:
            raise LabError(
                f"the checks of {lab.key} task {task} are missing; `git checkout labs/{lab.key}` "
                "brings them back."
            )
        targets = [f"labs/{lab.key}/{path.name}" for path in files]
    return [sys.executable, "-m", "pytest", "--no-header", *targets, *(["--mine"] if mine else [])]


def begin(
    lab: Lab, task: int | None = None, mine: bool = False, apart: bool = False
) -> subprocess.Popen[bytes]:
    """Start the checks; their output goes to this terminal, and they cannot read its keys.

    `apart` makes them a session of their own, which Ctrl-C here does not reach.
    """
    environment = {name: value for name, value in os.environ.items() if name != "NANOVLLM_CODE"}
    return subprocess.Popen(
        command(lab, task, mine),
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        start_new_session=apart,
    )


def end(process: subprocess.Popen[bytes]) -> None:
    """End checks that were begun apart, and whatever they started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(OSError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=2)
            return


def run(lab: Lab, task: int | None = None, mine: bool = False) -> int:
    """Run the checks to their end and return pytest's exit code, 0 when all pass."""
    process = begin(lab, task, mine)
    try:
        return process.wait()
    except KeyboardInterrupt:  # the terminal sent it to pytest too, which is now closing
        process.wait()
        return 130
