"""Make stubs from the reference: what stands between the solution marks becomes one error."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from grader.course.errors import LabError
from grader.course.lab_toml import Lab

BEGIN = "### BEGIN SOLUTION"
END = "### END SOLUTION"
_BLOCK = re.compile(
    rf"^(?P<indent>[ \t]*){BEGIN}[^\n]*\n(?P<body>.*?)^[ \t]*{END}[^\n]*$",
    re.MULTILINE | re.DOTALL,
)
_GAP = re.compile(r"\n{4,}(?=\S)")  # where a helper stood between two functions


class StubError(LabError):
    """A reference file from which no stub can be made."""


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Region:
    """What stands between two marks, and the innermost definition around them, if there is one.

    At module level `names` are what the region defines; a file with such a region starts empty.
    """

    line: int
    indent: str
    body: str
    owner: str
    level: str  # "function", "class" or "module"
    names: tuple[str, ...]


def definitions(source: str) -> list[tuple[str, Definition]]:
    """Every function and class of a module with its qualified name, outermost first."""
    found: list[tuple[str, Definition]] = []

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Definition):
                found.append((prefix + child.name, child))
                visit(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.If | ast.Try | ast.With):
                visit(child, prefix)

    visit(ast.parse(source), "")
    return found


def functions(source: str) -> list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function of a module with its qualified name, outermost first."""
    return [
        (name, node) for name, node in definitions(source) if not isinstance(node, ast.ClassDef)
    ]


def public_names(statements: Iterable[ast.stmt]) -> list[str]:
    """What module-level statements define: functions, classes, and variables; no imports."""
    found: list[str] = []
    for node in statements:
        if isinstance(node, Definition):
            found.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found += [target.id for target in targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.If | ast.Try | ast.With):
            found += public_names(s for s in ast.iter_child_nodes(node) if isinstance(s, ast.stmt))
    return [name for name in found if not name.startswith("_")]


def regions(source: str) -> list[Region]:
    """Every solution of a reference file, in order."""
    tree, spans = ast.parse(source), definitions(source)
    found = []
    for match in _BLOCK.finditer(source):
        first = source.count("\n", 0, match.start()) + 1
        last = source.count("\n", 0, match.end()) + 1
        around = [(n, d) for n, d in spans if d.lineno <= first <= (d.end_lineno or 0)]
        if around:
            owner, node = around[-1]
            level, names = ("class" if isinstance(node, ast.ClassDef) else "function"), ()
        else:
            owner, level = "", "module"
            names = tuple(public_names(s for s in tree.body if first < s.lineno <= last))
        found.append(Region(first, match["indent"], match["body"], owner, level, names))
    return found


def make_stub(source: str, module: str, lab: Lab) -> str:
    """The stub of one reference file; everything outside the marks stays byte for byte."""
    place = f"{lab.package}/{module}.py"
    if source.count(BEGIN) != source.count(END):
        raise StubError(f"{place}: {BEGIN} and {END} do not pair up.")
    found = regions(source)
    classes = [region.owner for region in found if region.level == "class"]
    given = {name for name, _ in definitions(_BLOCK.sub("", source))} if classes else set()
    for name in classes:
        if classes.count(name) > 1 or f"{name}.__init__" in given:
            raise StubError(
                f"{place}: {name} needs one region with its __init__ in it; mark single methods "
                "inside their bodies."
            )
    waiting = iter(found)
    stub = _BLOCK.sub(lambda match: _in_its_place(next(waiting), module, lab), source)
    return _GAP.sub("\n\n\n", stub)


def _in_its_place(region: Region, module: str, lab: Lab) -> str:
    """What stands in the stub for one region."""
    if region.level == "module":
        return _empty_file(region, module, lab)
    symbol = f"{module}:{region.owner}"
    task = lab.task_of_symbol.get(symbol)
    if task is None:
        raise StubError(f"{symbol} has a solution but is in no task of {lab.key}/lab.toml.")
    error = f'raise NotImplementedError("{lab.key} task {task.id}: {region.owner}")'
    if region.level == "function":
        return f"{region.indent}{error}"
    head = f"{region.indent}def __init__(self, *args, **kwargs):"
    return f"{head}\n{region.indent}    {error}"


def _empty_file(region: Region, module: str, lab: Lab) -> str:
    """One line that names the task, the names to write and the handout; nothing for imports."""
    if not region.names:
        return ""
    known = lab.task_of_symbol
    listed = [name for name in region.names if f"{module}:{name}" in known]
    beside = {task.id for symbol, task in known.items() if symbol.startswith(f"{module}:")}
    if not listed and len(beside) == 1:  # the public names stand outside
        text = f"# {lab.key} task {min(beside)}: your kernels and helpers for what stands below."
        return f"{text}\n\n"
    if not listed:
        raise StubError(
            f"{lab.package}/{module}.py:{region.line}: none of {', '.join(region.names)} is in a "
            f"task of {lab.key}/lab.toml."
        )
    tasks = sorted({known[f"{module}:{name}"].id for name in listed})
    word = "task" if len(tasks) == 1 else "tasks"
    numbers = " and ".join(str(task) for task in tasks)
    return (
        f"# {lab.key} {word} {numbers}: this file is yours to write. "
        f"Its interface stands in labs/{lab.key}/README.md."
    )


def solved_symbols(source: str, module: str) -> set[str]:
    """The symbols of a reference file that the student writes."""
    return {
        f"{module}:{name}"
        for region in regions(source)
        for name in ((region.owner,) if region.owner else region.names)
    }


def starts_empty(stub: str, qualname: str) -> bool:
    """Whether the student writes this name into a file that has nothing of it."""
    owner = qualname.partition(".")[0]
    return owner not in public_names(ast.parse(stub).body)


def has_empty_file(lab: Lab) -> bool:
    """Whether a file of the lab starts empty."""
    return any(
        region.level == "module" and region.names
        for path in lab.reference.glob("*.py")
        for region in regions(path.read_text(encoding="utf-8"))
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
        for region in regions(path.read_text(encoding="utf-8")):
            yield f"{lab.package}/{path.name}:{region.line}", region.body


def write_stubs(lab: Lab, folder: Path) -> None:
    """Write the stubs of a lab into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in lab_stubs(lab).items():
        (folder / name).write_text(text, encoding="utf-8")
