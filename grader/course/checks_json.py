"""`checks.json`: what the builder recorded of a lab, its checks and the digests of its files."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from grader.course.digest import check_files
from grader.course.lab_toml import Lab


@dataclass(frozen=True)
class CheckEntry:
    """One check as the builder saw it."""

    id: str
    task: int
    points: int
    title: str

    @property
    def file(self) -> str:
        return Path(self.id.partition("::")[0]).name

    @property
    def name(self) -> str:
        return self.id.rpartition("::")[2]


@dataclass(frozen=True)
class Registry:
    """`checks.json` of one lab: checks by id, and sha256 of every check file and stub."""

    checks: dict[str, CheckEntry]
    files: dict[str, str]


def file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read(lab: Lab) -> Registry:
    """Read `checks.json`; a lab that was never built has no entries."""
    path = lab.folder / "checks.json"
    if not path.is_file():
        return Registry({}, {})
    data = json.loads(path.read_text(encoding="utf-8"))
    checks = {
        key: CheckEntry(key, entry["task"], entry["points"], entry["title"])
        for key, entry in data["checks"].items()
    }
    return Registry(checks, data["files"])


def problems(lab: Lab) -> list[str]:
    """One sentence for each check file that was edited, deleted or added since the build."""
    recorded = {n: d for n, d in read(lab).files.items() if not n.startswith("stubs/")}
    if not recorded:
        return []
    present = {path.name: file_digest(path) for path in check_files(lab)}
    restore = f"`git checkout {lab.folder.parent.name}/{lab.key}` restores it"
    found = []
    for name, digest in recorded.items():
        if name not in present:
            found.append(f"{lab.key}/{name} is missing, its points cannot be earned; {restore}")
        elif present[name] != digest:
            found.append(f"{lab.key}/{name} was edited; grading uses the original; {restore}")
    extra = [name for name in present if name not in recorded]
    return found + [f"{lab.key}/{name} is not a check of the course; no points" for name in extra]
