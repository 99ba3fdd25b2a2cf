"""Submissions for the grader's tests: a lab of two quick tasks, right, wrong and dishonest ones."""

from __future__ import annotations

import dataclasses
import re
import shutil
from pathlib import Path

from grader.course.lab_toml import find_lab
from grader.grading import Limits, Sandbox
from tests.system_tools import require

CHEATS = Path(__file__).parent / "cheats"
SECRET = b"the secret of the tests' own course"
# Lab 04 with its tasks 1 (request.py) and 3 (budget.py) alone.
WHOLE = find_lab("04")
LAB = dataclasses.replace(WHOLE, tasks=tuple(task for task in WHOLE.tasks if task.id in (1, 3)))
HONEST = float(WHOLE.task(3).points)
FULL = HONEST + WHOLE.task(1).points
LIMITS = Limits(
    seconds=120,
    item_seconds=10,
    memory_mb=512,
    disk_mb=16,
    processes=32,
    output_mb=8,
    submission_mb=1,
)


def boxed(sandbox: Sandbox) -> Sandbox:
    """The sandbox, where it is bubblewrap: what the corpus does must not be let loose."""
    require("bubblewrap")
    level = sandbox.probe(LAB)
    assert level == "bubblewrap", f"bubblewrap cannot be used: {sandbox.tried}"
    return sandbox


def write_solved(folder: Path, *names: str) -> Path:
    """A submission that holds the stubs and, solved, the files that are named."""
    package = folder / LAB.package
    shutil.copytree(LAB.stubs, package)
    for name in names:
        shutil.copy(LAB.reference / name, package / name)
    return folder


def write_cheat(folder: Path, cheat: Path) -> Path:
    """Task 3 solved honestly; the cheat stands below the untouched stub of task 1's file.

    Lines after `# file: NAME` go into a file of that name beside it.
    """
    write_solved(folder, "budget.py")
    main, *others = re.split(r"^# file: (\S+)\n", cheat.read_text(encoding="utf-8"), flags=re.M)
    stub = folder / LAB.package / "request.py"
    stub.write_text(stub.read_text(encoding="utf-8") + "\n\n" + main, encoding="utf-8")
    for name, content in zip(others[::2], others[1::2], strict=True):
        (folder / LAB.package / name).write_text(content, encoding="utf-8")
        (folder / name).write_text(content, encoding="utf-8")
    return folder
