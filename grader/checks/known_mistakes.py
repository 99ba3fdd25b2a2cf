"""Known mistakes, recognised by what a check observed under them (`mistakes.json`)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from grader.checks.fingerprint import fingerprint, matches
from grader.course.lab_toml import Lab
from grader.course.outcome import Outcome, Status

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
    return [
        KnownMistake(entry["name"], entry["says"], telling(entry["seen"]))
        for entry in _sightings(lab).get(check, [])
        if _is_seen(entry, observation)
    ]


def telling(seen: dict[str, Any]) -> bool:
    """Whether what was seen is a value with parts, not an exception, a hang or one number."""
    return not ("raises" in seen or seen.get("kind") in COUNTS or seen in EMPTY)


def borne_out(
    lab: Lab, name: str, outcomes: Iterable[Outcome], observations: Mapping[str, dict[str, Any]]
) -> bool:
    """Whether all checks of a task that ran ended as under this mistake, and saw the same."""
    seen = {
        check: entry
        for check, entries in _sightings(lab).items()
        for entry in entries
        if entry["name"] == name
    }
    for outcome in outcomes:
        if outcome.status is Status.PASSED and outcome.check in seen:
            return False
        if outcome.status is Status.FAILED:
            entry, observation = seen.get(outcome.check), observations.get(outcome.check)
            if not (entry and observation and _is_seen(entry, observation)):
                return False
    return True


def _is_seen(entry: dict[str, Any], observation: dict[str, Any]) -> bool:
    return entry["at"] == observation["at"] and matches(entry["seen"], observation["seen"])


def _sightings(lab: Lab) -> dict[str, list[dict[str, Any]]]:
    """What was observed under the known mistakes, by check."""
    path = lab.folder / "mistakes.json"
    if not path.is_file():
        return {}
    return json.loads(path.read_text(encoding="utf-8"))["observations"]
