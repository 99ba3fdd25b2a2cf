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

    def releases(self, kept: Path = RELEASES) -> Path | None:
        """Where to look for a pack's own checks; None: nowhere."""
        if self.checks not in ("own", "new"):
            raise LabError(
                f'checks must be "own" (of the release a pack was made with) or "new" (today\'s), '
                f"not {self.checks!r}."
            )
        return kept if self.checks == "own" else None

    @classmethod
    def load(cls, path: Path | None) -> Config:
        """Read a file; the defaults without one. LabError says what in it cannot be used."""
        if path is None:
            return cls()
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise LabError(f"{path} cannot be read: {error}.") from None
        try:
            _known(cls, data, "table")
            late = data.get("late", {})
            _known(LatePolicy, late, "key of [late]")
            times = {
                find_lab(name).key: _time(at) for name, at in late.pop("deadlines", {}).items()
            }
            _numbers(late)
            limits = Limits.from_dict(data.get("limits", {}))
            found = cls(limits, LatePolicy(times, **late), data.get("checks", "own"))
            found.releases()
            return found
        except LabError as error:
            raise LabError(f"{path}: {error}") from None


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
