"""Whether the lab's handed-out files, its checks and stubs, are as the builder recorded them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from grader.course import checks_json
from grader.course.checks_json import CheckEntry, Registry, file_digest
from grader.course.errors import LabError
from grader.course.lab_toml import Lab


@dataclass(frozen=True)
class Tampered:
    """A course file that is not as it was handed out; `was` is its sha256 then."""

    path: Path
    how: str  # "edited" or "deleted"
    was: str


def read(lab: Lab) -> Registry:
    """The lab's `checks.json`; LabError where it is there and cannot be used."""
    try:
        return checks_json.read(lab)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise LabError(
            f"labs/{lab.key}/checks.json cannot be read; `git checkout labs/{lab.key}/checks.json` "
            "restores it."
        ) from None


def checks_of(lab: Lab, task: int) -> list[CheckEntry]:
    return [check for check in read(lab).checks.values() if check.task == task]


def tampered(lab: Lab, prefix: str = "test_") -> list[Tampered]:
    """The handed-out files whose names begin so that were edited or deleted since."""
    found = []
    for name, was in read(lab).files.items():
        path = lab.folder / name
        if not name.startswith(prefix):
            continue
        if not path.is_file():
            found.append(Tampered(path, "deleted", was))
        elif file_digest(path) != was:
            found.append(Tampered(path, "edited", was))
    return found


def tampered_tasks(lab: Lab) -> set[int]:
    """The tasks whose checks are not as handed out."""
    names = {item.path.name for item in tampered(lab)}
    return {check.task for check in read(lab).checks.values() if check.file in names}
