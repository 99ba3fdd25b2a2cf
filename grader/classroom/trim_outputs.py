"""Keep a student's outputs small and harmless: text and pictures only, each up to a size."""

from __future__ import annotations

from typing import Any

from nbformat import NotebookNode
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets import Integer

from grader.grading.left_out import shown

PICTURES = ("image/png", "image/jpeg")
CUT = "\n... the rest was cut ..."


class TrimOutput(NbGraderPreprocessor):
    """Cuts what `LimitOutput`, which counts lines, lets through; drops HTML and scripts."""

    max_text = Integer(20_000, help="characters of one output's text").tag(config=True)
    max_picture = Integer(2_000_000, help="characters of one picture, in base64").tag(config=True)

    _own: tuple[str, ...] = ()  # the cells' sources

    def preprocess(
        self, nb: NotebookNode, resources: dict[str, Any]
    ) -> tuple[NotebookNode, dict[str, Any]]:
        self._own = tuple(cell.source for cell in nb.cells)
        return super().preprocess(nb, resources)

    def preprocess_cell(
        self, cell: NotebookNode, resources: dict[str, Any], index: int
    ) -> tuple[NotebookNode, dict[str, Any]]:
        for output in cell.get("outputs", []):
            if output.output_type == "stream":
                output.text = self._cut(output.text)
            elif output.output_type == "error":
                output.ename, output.evalue = self._cut(output.ename), self._cut(output.evalue)
                output.traceback = [self._cut("\n".join(output.traceback))]
            else:
                output.data = self._kept(output.data)
                output.metadata = {}  # a picture's width goes into the page unquoted
        return cell, resources

    def _kept(self, data: dict[str, Any]) -> dict[str, Any]:
        kept = {
            kind: value
            for kind, value in data.items()
            if kind in PICTURES and len(value) <= self.max_picture
        }
        return kept | {"text/plain": self._cut(str(data.get("text/plain", "")))}

    def _cut(self, text: str) -> str:
        cut = text if len(text) <= self.max_text else text[: self.max_text] + CUT
        return shown(cut, self._own)
