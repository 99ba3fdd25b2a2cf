"""Which of the course's own modules a set of files needs, read from their import statements."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from grader.course.paths import ROOT

PACKAGES = ("grader", "models")


def needed_modules(roots: Iterable[Path]) -> set[Path]:
    """The files of `grader` and `models` that these files import, directly or through others."""
    found: set[Path] = set()
    waiting = list(roots)
    while waiting:
        for path in _imports(waiting.pop()):
            if path not in found:
                found.add(path)
                waiting.append(path)
    return found


def _imports(path: Path) -> Iterator[Path]:
    for node in ast.walk(ast.parse(code_of(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files(alias.name)
        elif isinstance(node, ast.ImportFrom):
            module = _absolute(node, path)
            for alias in node.names:
                yield from _files(f"{module}.{alias.name}")


def _absolute(node: ast.ImportFrom, path: Path) -> str:
    """The module that `from ... import` names, also where it begins with dots."""
    if not node.level:
        return node.module or ""
    package = path.relative_to(ROOT).parts[: -node.level]
    return ".".join([*package, *filter(None, [node.module])])


def _files(name: str) -> Iterator[Path]:
    """The file of a module and the `__init__.py` of each package above it, where it is ours."""
    parts = name.split(".")
    if parts[0] not in PACKAGES:
        return
    for length in range(1, len(parts) + 1):
        place = ROOT.joinpath(*parts[:length])
        for path in (place / "__init__.py", place.with_suffix(".py")):
            if path.is_file():
                yield path


def code_of(path: Path) -> str:
    """The Python of a module, or of a notebook's code cells."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    cells = json.loads(text)["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
