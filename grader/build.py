"""Build everything student-facing from `solutions/`, or say what is stale."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

from grader import mistakes
from grader.catalog import Lab
from grader.collect import collect_checks
from grader.notebooks import notebook_files
from grader.paths import MISTAKES, ROOT
from grader.registry import file_digest
from grader.stubs import lab_stubs

OBSERVERS = ("expect.py", "compare.py", "fingerprint.py", "running.py")


def cheap_files(lab: Lab) -> dict[str, str]:
    """Path -> text of what is made in a moment: stubs and notebooks."""
    home = lab.folder.relative_to(ROOT)
    stubs = {f"{home}/stubs/{name}": text for name, text in lab_stubs(lab).items()}
    return {**stubs, **notebook_files(lab)}


def checks_file(lab: Lab) -> str:
    """`checks.json`: every check with its points and hints, and the digests of the lab's files."""
    entries = {check.id: check for check in collect_checks(lab)}
    files = {path.name: file_digest(path) for path in sorted(lab.folder.glob("test_*.py"))}
    stubs = {
        f"stubs/{name}": hashlib.sha256(text.encode()).hexdigest()
        for name, text in sorted(lab_stubs(lab).items())
    }
    checks = {
        key: {name: value for name, value in asdict(check).items() if name != "id"}
        for key, check in sorted(entries.items())
    }
    return _json({"checks": checks, "files": {**files, **stubs}})


def mistakes_file(lab: Lab, progress: Callable[[str], None]) -> str:
    """`mistakes.json`: what each check observes under each known mistake, and of which inputs."""
    found = []
    for finding in mistakes.findings(lab):
        progress(f"{lab.key}: {finding.mistake.name}")
        found.append(finding)
    return _json({"made_from": inputs_digest(lab), "observations": mistakes.table(found)})


def inputs_digest(lab: Lab) -> str:
    """One digest of all that `mistakes.json` depends on; docstrings and comments do not count."""
    parts = [f"{path.name} {_code(path)}" for path in sorted(lab.reference.glob("*.py"))]
    paths = [*sorted(lab.folder.glob("test_*.py")), lab.folder / "lab.toml"]
    paths += [MISTAKES / f"{lab.key}.py", *(Path(__file__).parent / name for name in OBSERVERS)]
    parts += [f"{path.name} {file_digest(path)}" for path in paths if path.is_file()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _code(path: Path) -> str:
    """A module's syntax tree without its docstrings, as text."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node, clean=False
        ):
            node.body = node.body[1:]
    return ast.dump(tree)


def mistakes_fresh(lab: Lab) -> bool:
    """True when `mistakes.json` was made from what is there now."""
    path = lab.folder / "mistakes.json"
    if not path.is_file():
        return False
    return json.loads(path.read_text(encoding="utf-8"))["made_from"] == inputs_digest(lab)


def build(labs: Iterable[Lab], progress: Callable[[str], None]) -> list[str]:
    """Write what is stale; return the paths written."""
    written: list[str] = []
    for lab in labs:
        files = cheap_files(lab)
        written += [name for name, text in files.items() if _write(ROOT / name, text)]
        written += _remove_orphans(lab, files)
        home = lab.folder.relative_to(ROOT)
        if _write(lab.folder / "checks.json", checks_file(lab)):
            written.append(f"{home}/checks.json")
        if not mistakes_fresh(lab):
            _write(lab.folder / "mistakes.json", mistakes_file(lab, progress))
            written.append(f"{home}/mistakes.json")
    return written


def stale(labs: Iterable[Lab]) -> list[str]:
    """The generated files that `build` would change."""
    found: list[str] = []
    for lab in labs:
        home = lab.folder.relative_to(ROOT)
        files = {**cheap_files(lab), f"{home}/checks.json": checks_file(lab)}
        found += [name for name, text in files.items() if not _same(ROOT / name, text)]
        found += [str(path.relative_to(ROOT)) for path in _orphans(lab, files)]
        if not mistakes_fresh(lab):
            found.append(f"{home}/mistakes.json")
    return found


def _orphans(lab: Lab, files: dict[str, str]) -> list[Path]:
    there = lab.stubs.glob("*.py")
    return [path for path in there if str(path.relative_to(ROOT)) not in files]


def _remove_orphans(lab: Lab, files: dict[str, str]) -> list[str]:
    gone = _orphans(lab, files)
    for path in gone:
        path.unlink()
    return [f"{path.relative_to(ROOT)} (removed)" for path in gone]


def _same(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


def _write(path: Path, text: str) -> bool:
    if _same(path, text):
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return True


def _json(data: object) -> str:
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"
