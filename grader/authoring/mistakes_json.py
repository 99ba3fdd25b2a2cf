"""`mistakes.json`: what the checks observed under each known mistake, planted anew when stale."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from grader.authoring import mistakes
from grader.authoring.mistakes import Finding, Mistake
from grader.checks.markers import collect_checks
from grader.course.checks_json import file_digest
from grader.course.digest import RECORDED_RUNS
from grader.course.lab_toml import Lab
from grader.course.paths import ROOT

OBSERVERS = ("expect.py", "compare.py", "fingerprint.py")  # they make the observations
CHECKS = ROOT / "grader" / "checks"


def record_of(lab: Lab, progress: Callable[[str], None]) -> str:
    """The text of the lab's `mistakes.json`; plants those mistakes whose record is stale."""
    known, digests, before = mistakes.bank(lab), mistake_digests(lab), _read(lab)
    stale = [m for m in known if before["made_from"].get(m.name) != digests[m.name]]
    found = {m.name: Finding(m, _seen(m, before)) for m in known if m not in stale}
    for finding in mistakes.findings(lab, stale):
        progress(f"{lab.key}: {finding.mistake.name}")
        found[finding.mistake.name] = finding
    observations = mistakes.table([found[mistake.name] for mistake in known])
    data = {"made_from": digests, "observations": observations}
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def fresh(lab: Lab) -> bool:
    """True when every mistake's record was made from what is there now."""
    return _read(lab)["made_from"] == mistake_digests(lab)


def mistake_digests(lab: Lab) -> dict[str, str]:
    """For each mistake one digest of all that its record depends on.

    That is the code of the lab's reference, of the checks of its task, of what these import from
    `grader.checks`, the recorded runs, and the mistake itself. Docstrings, comments, markers and
    hints do not count, nor where in the grader a module lies; but on which line of its function an
    `expect` stands does, for by that a record names it.
    """
    common = [f"{path.name} {_code(path)}" for path in sorted(lab.reference.glob("*.py"))]
    common += sorted(_code(CHECKS / name) for name in OBSERVERS)
    runs = lab.folder / RECORDED_RUNS
    common += [file_digest(runs)] if runs.is_file() else []
    of_lab = _digest(common)
    files: dict[int, set[str]] = {}
    for check in collect_checks(lab):
        files.setdefault(check.task, set()).add(check.file)
    of_task = {
        task: _digest([_with_helpers(lab.folder / name) for name in sorted(names)])
        for task, names in files.items()
    }
    return {m.name: _digest([of_lab, of_task[m.task], repr(m)])[:16] for m in mistakes.bank(lab)}


def _read(lab: Lab) -> dict[str, Any]:
    path = lab.folder / "mistakes.json"
    if not path.is_file():
        return {"made_from": {}, "observations": {}}
    return json.loads(path.read_text(encoding="utf-8"))


def _seen(mistake: Mistake, record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What the record holds of one mistake, by check."""
    return {
        check: {key: value for key, value in entry.items() if key not in ("name", "says")}
        for check, entries in record["observations"].items()
        for entry in entries
        if entry["name"] == mistake.name
    }


def _with_helpers(checks: Path) -> str:
    """The code of a file of checks, and of what it imports from `grader.checks`."""
    files = {checks}
    while more := {path for one in files for path in _imported(one)} - files:
        files |= more
    helpers = [path for path in files - {checks} if path.name not in OBSERVERS]
    parts = sorted(_code(path) + _places(path) for path in helpers)
    return _digest([checks.name, _code(checks) + _places(checks), *parts])


def _imported(path: Path) -> Iterator[Path]:
    """The modules of `grader.checks` that a module names."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("grader.checks"):
            home = ROOT / (node.module or "").replace(".", "/")
            names = [home.with_suffix(".py"), *(home / f"{alias.name}.py" for alias in node.names)]
            yield from filter(Path.is_file, names)


def _code(path: Path) -> str:
    """A digest of a module's syntax tree without docstrings, markers and the grader's names."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            if ast.get_docstring(node, clean=False):
                node.body = node.body[1:]
            node.body = [line for line in node.body if not _imports_grader(line)]
        if isinstance(node, ast.FunctionDef):
            node.decorator_list = [d for d in node.decorator_list if not _is_marker(d)]
    return _digest([repr(_plain(tree))])


def _plain(node: Any) -> Any:
    """A syntax tree without what some Pythons leave empty, and others leave out."""
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if isinstance(node, ast.JoinedStr):  # some cut the text between two braces, others do not
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else repr(_plain(part))
            for part in node.values
        )
    if not isinstance(node, ast.AST):
        return node
    fields = ((name, value) for name, value in ast.iter_fields(node) if value not in (None, []))
    return type(node).__name__, [(name, _plain(value)) for name, value in fields]


def _places(path: Path) -> str:
    """The lines of each function's `expect`, from its first statement on."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    functions = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    return repr([
        (function.name, line - function.body[bool(ast.get_docstring(function))].lineno)
        for function in functions
        for line in sorted(
            node.lineno
            for node in ast.walk(function)
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("expect")
        )
    ])  # fmt: skip


def _imports_grader(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "grader"


def _is_marker(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.check"


def _digest(parts: list[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
