"""A synthetic class for one lab: right, wrong and unfinished submissions, no two alike."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from grader.authoring.mistakes import Mistake, bank, plant
from grader.course.lab_toml import Lab

WRONG, UNFINISHED = (1, 4, 7), (9,)  # of every ten submissions; the others are right


def write_class(lab: Lab, count: int, folder: Path) -> list[str]:
    """Write `count` zips as `lab pack` names them into a folder; the students' names."""
    folder.mkdir(parents=True)
    mistakes = bank(lab)
    students = [f"student{number:04d}" for number in range(count)]
    for number, student in enumerate(students):
        with tempfile.TemporaryDirectory() as name:
            package = Path(name) / "nanovllm" / lab.package
            _write(lab, number, mistakes, package)
            for path in package.rglob("*.py"):  # so that no cache answers
                with path.open("a", encoding="utf-8") as file:
                    file.write(f"\n# handed in by {student}\n")
            shutil.make_archive(str(folder / student), "zip", name)
    return students


def _write(lab: Lab, number: int, mistakes: list[Mistake], package: Path) -> None:
    """The reference; or with a mistake of the bank, or with one file as the student got it."""
    package.parent.mkdir()
    kind, turn = number % 10, number // 10
    if kind in WRONG:
        place = len(WRONG) * turn + WRONG.index(kind)
        plant(mistakes[place % len(mistakes)], lab, package.parent)
        return
    shutil.copytree(lab.reference, package, ignore=shutil.ignore_patterns("__pycache__"))
    if kind in UNFINISHED:
        stubs = sorted(path for path in lab.stubs.rglob("*.py") if path.name != "__init__.py")
        stub = stubs[turn % len(stubs)]
        shutil.copy(stub, package / stub.relative_to(lab.stubs))
