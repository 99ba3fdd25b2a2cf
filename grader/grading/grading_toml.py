"""`grading.toml`: limits and the late policy; frozen, unknown keys are an error."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from grader.course.errors import LabError
from grader.course.lab_toml import find_lab
from grader.course.paths import RELEASES
from grader.grading.late_policy import LatePolicy
from grader.sandbox.limits import Limits


@dataclass(frozen=True)
class Config:
    """Everything that an instructor can set for a course."""

    limits: Limits = field(default_factory=Limits)
    late: LatePolicy = field(default_factory=LatePolicy)
    checks: str = "own"  # of the release that a pack was made with; "new": today's for everybody
    releases: Path = RELEASES  # where `release` keeps their checks

    def kept(self) -> Path | None:
        """Where to look for a pack's own checks; None: nowhere."""
        if self.checks not in ("own", "new"):
            raise LabError(
                f'checks must be "own" (of the release a pack was made with) or "new" (today\'s), '
                f"not {self.checks!r}."
            )
        return self.releases if self.checks == "own" else None

    @classmethod
    def load(cls, path: Path | None) -> Config:
        """Read a file; the defaults without one. LabError says what in it cannot be used."""
        if path is None:
            return cls()
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise LabError(f"{path} cannot be read: {error}.") from None
        try:
            _known(cls, data, "table")
            late = _table(data, "late")
            _known(LatePolicy, late, "key of [late]")
            given = _table(late, "deadlines")
            times = {find_lab(name).key: _time(at) for name, at in given.items()}
            rest = {name: value for name, value in late.items() if name != "deadlines"}
            _numbers(rest)
            limits = Limits.from_dict(_table(data, "limits"))
            releases = data.get("releases", str(RELEASES))
            if not isinstance(releases, str):
                raise LabError(f"releases must be the name of a folder, not {releases!r}.")
            found = cls(
                limits,
                LatePolicy(times, **rest),
                data.get("checks", "own"),
                path.parent / Path(releases).expanduser(),
            )
            found.kept()
            return found
        except LabError as error:
            raise LabError(f"{path}: {error}") from None


def _table(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = data.get(name, {})
    if not isinstance(found, dict):
        raise LabError(f"[{name}] must be a table of names and values, not {found!r}.")
    return found


def _known(kind: type, data: Mapping[str, Any], what: str) -> None:
    names = [found.name for found in fields(kind)]
    unknown = sorted(set(data) - set(names))
    if unknown:
        raise LabError(f"unknown {what} {unknown[0]!r}; there are {', '.join(names)}.")


def _numbers(late: Mapping[str, Any]) -> None:
    for name, value in late.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise LabError(f"{name} must be a number from 0 up, not {value!r}.")


def _time(value: Any) -> datetime:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise LabError(
            f"a deadline needs date, time and offset, as 2026-10-01T23:59:00+02:00, not {value!r}."
        )
    return value
