"""Known mistakes, recognised by what a check observed under them (`mistakes.json`)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from grader.checks.fingerprint import fingerprint, matches
from grader.course.lab_toml import Lab

COUNTS = ("bool", "int", "float", "NoneType")
EMPTY = [fingerprint(value) for value in ([], (), {}, set(), "")]


@dataclass(frozen=True)
class KnownMistake:
    """A mistake that a check recognises by what it observed."""

    name: str
    says: str
    sure: bool  # what was seen is a value that shows it; a crash, a hang or a count fits others too


def recognise(lab: Lab, check: str, observation: dict[str, Any]) -> list[KnownMistake]:
    """The known mistakes that make this check observe just this."""
    path = lab.folder / "mistakes.json"
    if not path.is_file():
        return []
    entries = json.loads(path.read_text(encoding="utf-8"))["observations"].get(check, [])
    return [
        KnownMistake(entry["name"], entry["says"], telling(entry["seen"]))
        for entry in entries
        if entry["at"] == observation["at"] and matches(entry["seen"], observation["seen"])
    ]


def telling(seen: dict[str, Any]) -> bool:
    """Whether what was seen is a value with parts, not an exception, a hang or one number."""
    return not ("raises" in seen or seen.get("kind") in COUNTS or seen in EMPTY)
