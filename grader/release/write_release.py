"""Write a release into a folder that students may have worked in: nothing of theirs is lost."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from grader.course.errors import LabError
from grader.course.paths import ROOT

RECORD = ".release.json"


@dataclass
class Written:
    """What was done to each file, by its path."""

    new: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)  # edited since, and not to be overwritten


def write_release(
    files: dict[str, bytes], folder: Path, may_overwrite: Callable[[str], bool]
) -> Written:
    """Write the files; `may_overwrite` is asked for each that was edited since the last release.

    A file that an earlier release wrote, and this one does not hold, is removed unless edited.
    Raises LabError where the folder is part of the course itself, or is a file.
    """
    folder = folder.resolve()
    if folder == ROOT or folder.is_relative_to(ROOT) or ROOT.is_relative_to(folder):
        raise LabError(
            f"{folder} is or holds the course itself; name a folder outside, such as "
            f"{ROOT.parent / 'students'}."
        )
    if folder.exists() and not folder.is_dir():
        raise LabError(f"{folder} is a file; name a folder, which need not exist.")
    before = _read_record(folder)
    done = Written()
    for name, data in files.items():
        _write(folder / name, name, data, before, done, may_overwrite)
    for name in sorted(set(before) - set(files)):
        _remove(folder / name, name, before[name], done)
    record = {name: _digest(data) for name, data in files.items()}
    text = json.dumps(record, indent=1, sort_keys=True) + "\n"
    (folder / RECORD).write_text(text, encoding="utf-8")
    return done


def _write(
    path: Path,
    name: str,
    data: bytes,
    before: dict[str, str],
    done: Written,
    may_overwrite: Callable[[str], bool],
) -> None:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        done.new.append(name)
    else:
        there = path.read_bytes()
        if there == data:
            return
        if before.get(name) != _digest(there) and not may_overwrite(name):
            done.kept.append(name)
            return
        done.updated.append(name)
    path.write_bytes(data)


def _remove(path: Path, name: str, was: str, done: Written) -> None:
    if not path.is_file():
        return
    if _digest(path.read_bytes()) != was:
        done.kept.append(name)
        return
    path.unlink()
    done.removed.append(name)
    if not any(path.parent.iterdir()):
        path.parent.rmdir()


def _read_record(folder: Path) -> dict[str, str]:
    """Path -> sha256 of what the last release wrote; empty where there was none."""
    path = folder / RECORD
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise LabError(
            f"{path} cannot be read, so edits cannot be told from old files; delete it, and every "
            "file that differs will be asked for."
        ) from None


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
