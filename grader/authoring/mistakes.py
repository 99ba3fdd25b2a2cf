"""The bank of known mistakes: plant one in a copy of the reference, see which checks notice."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grader.checks.fingerprint import matches
from grader.checks.run_checks import Record, Run, fresh_processes, run_checks
from grader.course.errors import LabError
from grader.course.lab_toml import Lab
from grader.course.outcome import Status
from grader.course.paths import MISTAKES
from grader.course.stubs import definitions


class MistakeError(LabError):
    """A mistake that cannot be planted."""


@dataclass(frozen=True)
class Mistake:
    """One wrong variant: in `symbol` the text `old` becomes `new`.

    A symbol is `module:qualname` of a function or class, public or not, or `module:` for all of it.
    """

    name: str
    task: int
    symbol: str
    old: str
    new: str
    says: str


@dataclass(frozen=True)
class Finding:
    """What one planted mistake did: observations by check, empty when nothing noticed it."""

    mistake: Mistake
    observations: dict[str, dict[str, Any]]


def bank(lab: Lab) -> list[Mistake]:
    """The mistakes of a lab, from `solutions/mistakes/labNN.py`."""
    path = MISTAKES / f"{lab.key}.py"
    if not path.is_file():
        return []
    spec = importlib.util.spec_from_file_location(f"mistakes_{lab.key}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MISTAKES


def plant(mistake: Mistake, lab: Lab, package: Path) -> None:
    """Copy the reference of a lab into `package` with the mistake in it."""
    folder = package / lab.package
    shutil.copytree(lab.reference, folder, ignore=shutil.ignore_patterns("__pycache__"))
    module, _, name = mistake.symbol.partition(":")
    path = folder / f"{module}.py"
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines(keepends=True)
    first, last = 0, len(lines)
    if name:
        nodes = [node for found, node in definitions(source) if found == name]
        if len(nodes) != 1:
            raise MistakeError(
                f"{lab.key} {mistake.name}: {mistake.symbol} is there {len(nodes)} times."
            )
        first = min([nodes[0].lineno, *(d.lineno for d in nodes[0].decorator_list)]) - 1
        last = nodes[0].end_lineno
    body = "".join(lines[first:last])
    if body.count(mistake.old) != 1:
        raise MistakeError(
            f"{lab.key} {mistake.name}: {mistake.symbol} has {mistake.old!r} "
            f"{body.count(mistake.old)} times, it must be there once."
        )
    changed = body.replace(mistake.old, mistake.new)
    path.write_text("".join(lines[:first]) + changed + "".join(lines[last:]), encoding="utf-8")


def _try(work: tuple[Mistake, Lab]) -> tuple[Mistake, Record]:
    mistake, lab = work
    with tempfile.TemporaryDirectory() as folder:
        plant(mistake, lab, Path(folder))
        return mistake, run_checks(Run(lab.key, Path(folder), f"task{mistake.task}"))


def findings(lab: Lab, chosen: list[Mistake] | None = None) -> Iterator[Finding]:
    """Plant the chosen mistakes, or all of the lab, in turn and run the checks of their task."""
    planted = bank(lab) if chosen is None else chosen
    for mistake, record in fresh_processes(_try, [(m, lab) for m in planted]):
        failed = {o.check for o in record.outcomes if o.status is Status.FAILED}
        seen = {check: record.observations.get(check, {}) for check in sorted(failed)}
        yield Finding(mistake, seen)


def table(found: list[Finding]) -> dict[str, list[dict[str, Any]]]:
    """Observations by check, as `mistakes.json` holds them: no code, no names of symbols.

    None that hypothesis could not repeat: a busy machine stopped the check, which says nothing.
    """
    by_check: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for finding in found:
        for check, observation in finding.observations.items():
            if observation and not observation["seen"].get("raises", "").startswith("Flaky"):
                by_check[check].append(
                    {"name": finding.mistake.name, "says": finding.mistake.says, **observation}
                )
    return dict(sorted(by_check.items()))


def named_by(finding: Finding, entries: dict[str, list[dict[str, Any]]]) -> list[str]:
    """The checks whose card names this mistake and no other."""
    named = []
    for check, observation in finding.observations.items():
        if not observation:
            continue
        hits = {
            entry["name"]
            for entry in entries.get(check, [])
            if entry["at"] == observation["at"] and matches(entry["seen"], observation["seen"])
        }
        if hits == {finding.mistake.name}:
            named.append(check)
    return named
