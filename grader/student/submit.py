"""Hand a lab in where the class works on one JupyterHub: pack it and give it to nbgrader."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from grader.course.errors import LabError
from grader.course.lab_toml import Lab
from grader.course.paths import NOTEBOOKS
from grader.student.pack import Pack, notebook_of, pack
from grader.student_files.lab_folder import shown
from grader.student_files.state_records import LabState


def submit(lab: Lab, entry: LabState, course: str) -> Pack:
    """Pack beside the notebook, then `nbgrader submit`. Raises LabError where that cannot work."""
    if not (home := notebook_of(lab).parent).is_dir():
        raise LabError(f"{shown(home)} is missing; `git checkout {shown(home)}` brings it back.")
    made = pack(lab, entry, home)
    by_hand = f"upload {shown(made.path)} where your course asks for it"
    program = _nbgrader()
    if program is None:
        raise LabError(f"there is no nbgrader on this machine; {by_hand}.")
    words = [program, "submit", lab.key, *(["--course", course] if course else [])]
    done = subprocess.run(words, cwd=NOTEBOOKS, capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line.strip() for line in done.stderr.splitlines() if "ERROR" in line]
        reason = said[-1].rpartition("ERROR]")[2].strip() if said else "it gave no reason"
        raise LabError(f"nbgrader did not take {lab.key} ({reason}); {by_hand}.")
    return made


def _nbgrader() -> str | None:
    """The command `nbgrader`, on the PATH or beside this Python."""
    beside = Path(sys.executable).with_name("nbgrader")
    return shutil.which("nbgrader") or (str(beside) if beside.is_file() else None)
