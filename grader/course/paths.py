"""Where things are in the course's folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Those of an earlier release, where its checks are graded with.
LABS = Path(os.environ.get("NANOVLLM_LABS") or ROOT / "labs")
SOLUTIONS = ROOT / "solutions"
REFERENCE = SOLUTIONS / "nanovllm"
HIDDEN = SOLUTIONS / "hidden"
MISTAKES = SOLUTIONS / "mistakes"
VARIANTS = SOLUTIONS / "variants"
MUTANTS = SOLUTIONS / "mutants"
RECORDED = SOLUTIONS / "recorded"
HINTS = SOLUTIONS / "hints"
NOTEBOOK_SOURCES = SOLUTIONS / "notebooks"
NOTEBOOKS = ROOT / "notebooks"
MODELS = ROOT / "models"
RELEASES = ROOT / ".grading" / "releases"  # what grading needs of each release


def student_package() -> Path:
    """The folder that holds the student's subpackages; NANOVLLM_MINE names another one."""
    return Path(os.environ.get("NANOVLLM_MINE") or ROOT / "nanovllm").resolve()


def find_commands() -> None:
    """Put this environment's commands on PATH: nbgrader calls alembic by its name."""
    here = str(Path(sys.executable).parent)
    paths = os.environ.get("PATH", os.defpath).split(os.pathsep)
    if here not in paths:
        os.environ["PATH"] = os.pathsep.join([here, *paths])
