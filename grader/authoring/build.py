"""Build everything student-facing from `solutions/`, or say what is stale."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

from grader.authoring import mistakes_json
from grader.authoring.build_notebooks import notebook_files
from grader.authoring.hours import estimate
from grader.authoring.recorded import recorded
from grader.checks import hints_file
from grader.checks.markers import collect_checks
from grader.course.checks_json import file_digest
from grader.course.digest import check_files
from grader.course.lab_toml import Lab
from grader.course.paths import ROOT
from grader.course.stubs import lab_stubs


def cheap_files(lab: Lab) -> dict[str, str]:
    """Path -> text of what is made in a moment: stubs, hints, records and notebooks."""
    home = lab.folder.relative_to(ROOT)
    stubs = {f"{home}/stubs/{name}": text for name, text in lab_stubs(lab).items()}
    records = {f"{home}/{name}": text for name, text in recorded(lab).items()}
    hints = {f"{home}/hints.txt": hints_file.encoded(lab)}
    return {**stubs, **hints, **records, **notebook_files(lab)}


def checks_file(lab: Lab) -> str:
    """`checks.json`: every check with its points, and the digests of the lab's files."""
    entries = {check.id: check for check in collect_checks(lab)}
    files = {path.name: file_digest(path) for path in check_files(lab)}
    stubs = {
        f"stubs/{name}": hashlib.sha256(text.encode()).hexdigest()
        for name, text in sorted(lab_stubs(lab).items())
    }
    checks = {
        key: {name: value for name, value in asdict(check).items() if name != "id"}
        for key, check in sorted(entries.items())
    }
    minutes = {"minutes": estimate(lab)} if any(task.difficulty for task in lab.tasks) else {}
    data = {**minutes, "checks": checks, "files": {**files, **stubs}}
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


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
        if not mistakes_json.fresh(lab):
            _write(lab.folder / "mistakes.json", mistakes_json.record_of(lab, progress))
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
        if not mistakes_json.fresh(lab):
            found.append(f"{home}/mistakes.json")
    return found


def _orphans(lab: Lab, files: dict[str, str]) -> list[Path]:
    there = filter(Path.is_file, lab.stubs.glob("*"))
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
