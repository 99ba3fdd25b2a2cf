"""Build notebooks: jupytext makes the instructor's from its script, nbgrader the student's."""

from __future__ import annotations

import copy
from typing import Any

import jupytext
import nbformat
from nbgrader.preprocessors import (
    ClearHiddenTests,
    ClearMarkScheme,
    ClearOutput,
    ClearSolutions,
    ComputeChecksums,
    LockCells,
)

from grader.course.lab_toml import Lab
from grader.course.paths import NOTEBOOK_SOURCES, NOTEBOOKS

STEPS = (
    LockCells,
    ClearSolutions,
    ClearOutput,
    ClearHiddenTests,
    ClearMarkScheme,
    ComputeChecksums,
)
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}


def source_notebook(lab: Lab) -> nbformat.NotebookNode:
    """The instructor's notebook, from its jupytext script, with cell ids that never change."""
    notebook = jupytext.read(NOTEBOOK_SOURCES / f"{lab.key}.py")
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"{lab.key}-{number:03d}"
        grading = cell.metadata.get("nbgrader")
        if grading:
            grading["cell_type"] = cell.cell_type
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNEL})
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    nbformat.validate(notebook)
    return notebook


def student_notebook(source: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The release version, byte for byte what `nbgrader generate_assignment` writes."""
    notebook = copy.deepcopy(source)
    resources: Any = {}
    for step in STEPS:
        notebook, resources = step().preprocess(notebook, resources)
    return notebook


def notebook_files(lab: Lab) -> dict[str, str]:
    """Path relative to the course's folder -> text, of both versions."""
    if not (NOTEBOOK_SOURCES / f"{lab.key}.py").is_file():
        return {}
    source = source_notebook(lab)
    root = NOTEBOOKS.parent
    return {
        str((folder / lab.key / f"{lab.key}.ipynb").relative_to(root)): _text(notebook)
        for folder, notebook in (
            (NOTEBOOK_SOURCES, source),
            (NOTEBOOKS, student_notebook(source)),
        )
    }


def _text(notebook: nbformat.NotebookNode) -> str:
    return nbformat.writes(notebook) + "\n"
