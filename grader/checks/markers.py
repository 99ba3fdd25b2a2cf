"""Read the checks of a lab from their markers, without running or importing anything."""

from __future__ import annotations

import ast
from functools import lru_cache

from grader.course.checks_json import CheckEntry
from grader.course.errors import LabError
from grader.course.lab_toml import Lab


class CheckError(LabError):
    """A check whose marker is missing or cannot be read."""


def collect_checks(lab: Lab) -> list[CheckEntry]:
    """Every `test_` function of the lab's check files; its marker must hold plain constants."""
    return [
        entry
        for path in sorted(lab.folder.glob("test_*.py"))
        for entry in _of_file(lab.key, path.name, path.read_text(encoding="utf-8"))
    ]


@lru_cache(256)
def _of_file(lab: str, name: str, text: str) -> tuple[CheckEntry, ...]:
    """The checks in the text of one file; read again only when the text is another."""
    found = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            values = _marker(node, f"{name}::{node.name}")
            found.append(
                CheckEntry(
                    id=f"labs/{lab}/{name}::{node.name}",
                    task=values["task"],
                    points=values["points"],
                    title=values["title"],
                )
            )
    return tuple(found)


def _marker(node: ast.FunctionDef, where: str) -> dict:
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.check":
            try:
                values = {k.arg: ast.literal_eval(k.value) for k in decorator.keywords}
            except ValueError as error:
                raise CheckError(f"{where}: the marker must hold constants: {error}") from None
            if {"task", "points", "title"} != set(values) - {"stress"}:
                raise CheckError(f"{where}: a check's marker has task, points and title.")
            return values
    raise CheckError(f"{where} has no check marker.")
