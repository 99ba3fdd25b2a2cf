"""A class of synthetic students for the tests of nbgrader's side: a folder, packs, notebooks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import nbconvert
import nbformat
import pytest

from grader.authoring.mistakes import bank, plant
from grader.classroom.class_folder import Course, new_course, open_course
from grader.course.lab_toml import Lab, find_lab
from grader.course.paths import NOTEBOOK_SOURCES, NOTEBOOKS, ROOT

LAB = find_lab(1)
EXPERIMENT = """\
from grader.student.notebook import needs
from nanovllm.tokenization.bpe import train_bpe

with needs("01", 1):
    print(train_bpe(["ab ab"], 257).merges)
"""
ANSWER = "The curve flattens after 1,000 merges, so 2,000 entries."
Edit = Callable[[nbformat.NotebookNode], None]


def light_source(folder: Path) -> None:
    """The instructor's notebook of lab 01 with one quick experiment and all its graded cells."""
    notebook = nbformat.read(NOTEBOOK_SOURCES / LAB.key / f"{LAB.key}.ipynb", as_version=4)
    graded = [cell for cell in notebook.cells if "nbgrader" in cell.metadata]
    notebook.cells = [notebook.cells[0], nbformat.v4.new_code_cell(EXPERIMENT), *graded]
    (folder / LAB.key).mkdir(parents=True)
    nbformat.write(notebook, folder / LAB.key / f"{LAB.key}.ipynb")


@dataclass(frozen=True)
class Class:
    """The class's folder and what lies around it."""

    root: Path

    @property
    def folder(self) -> Path:
        return self.root / "class"

    @property
    def course(self) -> Course:
        return open_course(self.folder)

    @property
    def environment(self) -> dict[str, str]:
        """Nothing of this machine's own Jupyter; templates also where environments are layered."""
        kept = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("NANOVLLM_", "JUPYTER", "PYTEST_", "COV_"))
        }
        shared = Path(nbconvert.__file__).parents[4] / "share" / "jupyter"
        own = {name: str(self.root / name.lower()) for name in ("JUPYTER_CONFIG_DIR",
               "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")}  # fmt: skip
        return kept | own | {
            "PYTHONPATH": str(ROOT), "JUPYTER_PATH": str(shared), "COLUMNS": "200",
            "PYTHONWARNINGS": "ignore",
        }  # fmt: skip

    @contextmanager
    def own_jupyter(self) -> Iterator[None]:
        """The same for what runs in this process."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.environment.items():
                if name.startswith(("JUPYTER", "IPYTHON")):
                    patch.setenv(name, value)
            yield

    def run(
        self, *words: str, cwd: Path | None = None, code: int = 0
    ) -> subprocess.CompletedProcess[str]:
        """`python -m` these words in the class's folder."""
        done = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=cwd or self.folder, env=self.environment, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == code, f"{words}: {done.stdout}{done.stderr}"
        return done

    def released(self) -> nbformat.NotebookNode:
        return nbformat.read(self.folder / "release" / LAB.key / f"{LAB.key}.ipynb", as_version=4)

    def notebook(self, *edits: Edit, answer: str = ANSWER) -> bytes:
        """A student's notebook: the released one, the first question answered, then edited."""
        notebook = self.released()
        cell(notebook, f"{LAB.key}-question-1").source = answer
        for edit in edits:
            edit(notebook)
        return nbformat.writes(notebook).encode()

    def hand_in(self, student: str, notebook: bytes | None, pack: bytes | None) -> None:
        """Put files where nbgrader's collecting would have put them."""
        folder = self.folder / "submitted" / student / LAB.key
        folder.mkdir(parents=True, exist_ok=True)
        if notebook is not None:
            (folder / f"{LAB.key}.ipynb").write_bytes(notebook)
        if pack is not None:
            (folder / f"{LAB.key}.zip").write_bytes(pack)

    def graded(self, student: str) -> nbformat.NotebookNode:
        path = self.folder / "autograded" / student / LAB.key / f"{LAB.key}.ipynb"
        return nbformat.read(path, as_version=4)

    def score(self, student: str) -> float:
        with self.course.gradebook() as gradebook:
            return gradebook.find_submission(LAB.key, student).score


def make_class(root: Path, settings: str = "", light: bool = True) -> Class:
    """A class of lab 01, generated; `settings` are lines for its nbgrader_config.py."""
    made = Class(root)
    new_course(made.folder, "testclass")
    lines = [settings, f"c.Exchange.root = {str(root / 'exchange')!r}"]
    lines.append(f"c.Exchange.cache = {str(root / 'cache')!r}")
    if light:
        light_source(root / "source")
        lines.append(f"c.CourseDirectory.source_directory = {str(root / 'source')!r}")
    with (made.folder / "nbgrader_config.py").open("a") as file:
        file.write("\n".join(lines) + "\n")
    return made


def cell(notebook: nbformat.NotebookNode, grade_id: str) -> nbformat.NotebookNode:
    """The first cell with a grade id."""
    return next(
        c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("grade_id") == grade_id
    )


def reference_files(lab: Lab = LAB) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in lab.reference.glob("*.py")}


def mistaken_files(folder: Path, name: str) -> dict[str, bytes]:
    """The reference with one known mistake."""
    plant(next(one for one in bank(LAB) if one.name == name), LAB, folder)
    return {path.name: path.read_bytes() for path in (folder / LAB.package).glob("*.py")}


def pack(path: Path, files: dict[str, bytes], notebook: bytes | None = None) -> bytes:
    """A pack as `lab pack` writes it."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(f"nanovllm/{LAB.package}/{name}", data)
        if notebook is not None:
            archive.writestr(f"{LAB.key}.ipynb", notebook)
        archive.writestr("manifest.json", json.dumps({"format": 1, "lab": LAB.key}))
    return path.read_bytes()


__all__ = ["LAB", "NOTEBOOKS", "Class", "cell", "make_class", "mistaken_files", "pack"]
