"""What course notebooks use: self-checks, cells that wait for a task, and one look of pictures."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from grader.course.lab_toml import find_lab
from grader.course.paths import ROOT

# Okabe and Ito's colours, which are told apart without telling red from green.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")


def style(grid: bool = True) -> None:
    """Set the look of all pictures; "C0", "C1", ... are the COLOURS."""
    import matplotlib.pyplot as plt

    plt.rcParams.update(
        {
            "figure.dpi": 110,
            "font.size": 9,
            "axes.grid": grid,
            "axes.prop_cycle": plt.cycler(color=COLOURS),
            "axes.spines.right": False,
            "axes.spines.top": False,
            "grid.alpha": 0.3,
        }
    )


def check_task(lab: str, task: int) -> float:
    """Run the checks of one task on your code, print the report, return the points earned."""
    import json

    found = find_lab(lab)
    found.task(task)
    if os.environ.get("NBGRADER_EXECUTION") == "autograde":
        return 0.0  # the course's own report replaces this cell's output
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.json"
        command = [
            sys.executable,
            "-m",
            "pytest",
            str(found.folder),
            "-q",
            "-k",
            f"task{task}",
            "--color=no",
            "--record",
            str(record),
        ]
        if os.environ.get("NANOVLLM_CODE") == "reference":
            command.append("--reference")
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        print(done.stdout)
        if not record.is_file():
            return 0.0
        outcomes = json.loads(record.read_text(encoding="utf-8"))["outcomes"]
    return float(sum(o["points"] for o in outcomes if o["status"] == "passed"))


@contextlib.contextmanager
def needs(lab: str, *tasks: int) -> Iterator[None]:
    """Let a cell end early, with one line, while one of these tasks is not written yet.

    So also for a task of a lower lab, which comes from the student where there is no reference.
    """
    key = find_lab(lab).key
    try:
        yield
    except NotImplementedError as error:
        text = str(error)
        found = re.match(r"(lab\d\d) task (\d+):", text)
        if not found or found[1] > key or (found[1] == key and int(found[2]) not in tasks):
            raise
        print(f"This cell needs {text}. Write it, then run the cell again.")
