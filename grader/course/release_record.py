"""`.release.json`: which release of which course a copy is, and the sha256 of each of its files."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from grader.course.errors import LabError
from grader.course.paths import ROOT

RECORD = ".release.json"
NOT_OURS = {".git", ".lab", ".venv"}


@dataclass(frozen=True)
class Record:
    """A release: `number` counts the releases of one `course`; 0 of "" came before they counted.

    made: what the builder made of files that the instructor has edited in the release since.
    """

    files: dict[str, str] = field(default_factory=dict)
    course: str = ""
    number: int = 0
    made: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        course = f" of course {self.course}" if self.course else ", from before they had numbers"
        return f"release {self.number}{course}"

    @property
    def version(self) -> dict[str, Any]:
        """What a pack says of the release that it was made with."""
        return {"course": self.course, "number": self.number}

    @property
    def text(self) -> str:
        made = {"made": self.made} if self.made else {}
        data = {**self.version, **made, "files": self.files}
        return json.dumps(data, indent=1, sort_keys=True) + "\n"

    @classmethod
    def parsed(cls, text: str | bytes, where: object) -> Record:
        """LabError for what no release has written."""
        try:
            data = json.loads(text)
            if not isinstance(data.get("files"), dict):  # before releases had numbers
                data = {"files": data}
            found = cls(**data)
            plain = all(map(_is_plain, found.files)) and isinstance(found.course, str)
            digests = all(isinstance(d, str) for d in (*found.files.values(), *found.made.values()))
            if not (plain and digests and type(found.number) is int and found.number >= 0):
                raise ValueError
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise LabError(
                f"{where} cannot be read, so nobody knows which release this is; take that file "
                "from the release anew (instructors: bring it back with git, or release into an "
                "empty folder)."
            ) from None
        return found


def _is_plain(name: str) -> bool:
    """Whether a path stays in the course's folder, and out of what is the student's there."""
    path = PurePosixPath(name)
    return bool(path.parts) and not (
        path.is_absolute() or "\\" in name or ".." in path.parts or path.parts[0] in NOT_OURS
    )


def read_record(folder: Path = ROOT) -> Record | None:
    """The record in a folder; None where there is none."""
    path = folder / RECORD
    return Record.parsed(path.read_bytes(), path) if path.is_file() else None


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
