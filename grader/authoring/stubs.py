"""Make stubs from the reference: what stands between the solution marks becomes one error."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from grader.course.errors import LabError
from grader.course.lab_toml import Lab

BEGIN = "### BEGIN SOLUTION"
END = "### END SOLUTION"
_BLOCK = re.compile(
    rf"^(?P<indent>[ \t]*){BEGIN}[^\n]*\n(?P<body>.*?)^[ \t]*{END}[^\n]*$",
    re.MULTILINE | re.DOTALL,
)


class StubError(LabError):
    """A reference file from which no stub can be made."""


def functions(source: str) -> list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function of a module with its qualified name, outermost first."""
    found: list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]] = []

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                visit(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                found.append((prefix + child.name, child))
                visit(child, f"{prefix}{child.name}.")

    visit(ast.parse(source), "")
    return found


def make_stub(source: str, module: str, lab: Lab) -> str:
    """The stub of one reference file; everything outside the marks stays byte for byte."""
    if source.count(BEGIN) != source.count(END):
        raise StubError(f"{lab.package}/{module}.py: {BEGIN} and {END} do not pair up.")
    spans = functions(source)

    def replace(match: re.Match[str]) -> str:
        line = source.count("\n", 0, match.start()) + 1
        around = [name for name, node in spans if node.lineno <= line <= (node.end_lineno or 0)]
        if not around:
            raise StubError(f"{lab.package}/{module}.py:{line}: a solution outside any function.")
        symbol = f"{module}:{around[-1]}"
        task = lab.task_of_symbol.get(symbol)
        if task is None:
            raise StubError(f"{symbol} has a solution but is in no task of {lab.key}/lab.toml.")
        error = f'raise NotImplementedError("{lab.key} task {task.id}: {around[-1]}")'
        return f"{match['indent']}{error}"

    return _BLOCK.sub(replace, source)


def solved_symbols(source: str, module: str) -> set[str]:
    """The symbols of a reference file whose bodies the student writes."""
    lines = source.splitlines()
    return {
        f"{module}:{name}"
        for name, node in functions(source)
        if any(BEGIN in line for line in lines[node.lineno - 1 : node.end_lineno])
        and not _inside_inner(source, name)
    }


def _inside_inner(source: str, name: str) -> bool:
    """True when an inner function of `name`, not `name` itself, holds the marks."""
    lines = source.splitlines()
    return any(
        other.startswith(f"{name}.")
        and any(BEGIN in line for line in lines[node.lineno - 1 : node.end_lineno])
        for other, node in functions(source)
    )


def lab_stubs(lab: Lab) -> dict[str, str]:
    """File name -> text of every stub of a lab; lab.toml must name just its symbols.

    Pages (.html) are given as they are.
    """
    stubs: dict[str, str] = {}
    solved: set[str] = set()
    for path in sorted(lab.reference.glob("*.py")):
        source = path.read_text(encoding="utf-8")
        stubs[path.name] = make_stub(source, path.stem, lab)
        solved |= solved_symbols(source, path.stem)
    invented = set(lab.task_of_symbol) - solved
    if invented:
        raise StubError(
            f"{lab.key}/lab.toml names {sorted(invented)}, which have no solution marks."
        )
    pages = sorted(lab.reference.glob("*.html"))
    return stubs | {page.name: page.read_text(encoding="utf-8") for page in pages}


def solutions(lab: Lab) -> Iterator[tuple[str, str]]:
    """Every body that the student writes: its place, and its text in the reference."""
    for path in sorted(lab.reference.glob("*.py")):
        source = path.read_text(encoding="utf-8")
        for match in _BLOCK.finditer(source):
            line = source.count("\n", 0, match.start()) + 1
            yield f"{lab.package}/{path.name}:{line}", match["body"]


def write_stubs(lab: Lab, folder: Path) -> None:
    """Write the stubs of a lab into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in lab_stubs(lab).items():
        (folder / name).write_text(text, encoding="utf-8")
