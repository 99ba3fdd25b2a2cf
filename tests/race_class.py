"""Entries for the tests of lab 14's race: right ones, broken ones and cheats."""

from __future__ import annotations

import shutil
from pathlib import Path

from grader.course.lab_toml import find_lab

LAB = find_lab("14")
HOME = Path(__file__).parent / "race"
RIGHT, BROKEN, CHEATS = (
    sorted((HOME / name).glob("*.py")) for name in ("entries", "broken", "cheats")
)


def write_entry(folder: Path, capstone: Path | None = None) -> Path:
    """The lab solved, with this capstone; the reference's own if None."""
    name = capstone.stem if capstone else "reference"
    package = folder / name / "nanovllm" / LAB.package
    shutil.copytree(LAB.reference, package, ignore=shutil.ignore_patterns("__pycache__"))
    if capstone:
        shutil.copy(capstone, package / "capstone.py")
    return folder / name
