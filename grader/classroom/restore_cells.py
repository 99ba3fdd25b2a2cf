"""Graded cells of a submitted notebook, put back to what was released."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbgrader.preprocessors import NbGraderPreprocessor

from grader.classroom.nbgrader_paths import course_directory

Resources = dict[str, Any]


class RestoreGrading(NbGraderPreprocessor):
    """Puts each graded cell's metadata back, and takes it off copies and inventions.

    First of all steps: a copied cell, an emptied or a forged entry would stop the others.
    """

    def preprocess(self, nb: NotebookNode, resources: Resources) -> tuple[NotebookNode, Resources]:
        released = self._released(resources)
        copies: dict[str, list[NotebookNode]] = {}
        for cell in nb.cells:
            entry = cell.metadata.pop("nbgrader", None)
            name = entry.get("grade_id") if isinstance(entry, dict) else None
            if isinstance(name, str) and name in released:
                copies.setdefault(name, []).append(cell)
        for name, cells in copies.items():
            chosen = self._choose(cells, released[name])
            chosen.metadata["nbgrader"] = dict(released[name].metadata.nbgrader)
            for other in cells:
                if other is not chosen:
                    self.log.warning("%s is there more than once; one copy counts", name)
        self._add_missing(nb, released)
        return nb, resources

    def _add_missing(self, nb: NotebookNode, released: dict[str, NotebookNode]) -> None:
        """Put deleted cells back where they were; nbgrader's own step fails after a locked text."""
        place = 0
        for name, cell in released.items():
            ids = [one.metadata.get("nbgrader", {}).get("grade_id") for one in nb.cells]
            if name not in ids:
                self.log.warning("%s was deleted and is put back", name)
                nb.cells.insert(place, copy.deepcopy(cell))
            else:
                place = ids.index(name)
            place += 1

    def _choose(self, cells: list[NotebookNode], released: NotebookNode) -> NotebookNode:
        """Of several copies the one that holds an answer, else the first."""
        answered = [cell for cell in cells if cell.source.strip() != released.source.strip()]
        return (answered or cells)[0] if released.metadata.nbgrader["solution"] else cells[0]

    def _released(self, resources: Resources) -> dict[str, NotebookNode]:
        """The graded cells of the released notebook by their ids."""
        names = resources["nbgrader"]
        course = course_directory(self)
        folder = course.format_path(course.release_directory, ".", names["assignment"])
        notebook = nbformat.read(Path(folder) / f"{names['notebook']}.ipynb", as_version=4)
        return {
            cell.metadata.nbgrader["grade_id"]: cell
            for cell in notebook.cells
            if cell.metadata.get("nbgrader", {}).get("grade_id")
        }
