"""Write a release into a folder that students may have worked in: nothing of theirs is lost."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from grader.course.errors import LabError
from grader.course.paths import ROOT
from grader.course.release_record import RECORD, Record, read_record, sha256


@dataclass
class Written:
    """What was done to each file, by its path."""

    new: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)  # edited since, and not to be overwritten
    record: Record = field(default_factory=Record)


def write_release(
    files: dict[str, bytes],
    folder: Path,
    may_overwrite: Callable[[str], bool],
    others: Sequence[Record] = (),
) -> Written:
    """Write the files; `may_overwrite` is asked for each that was edited since the last release.

    A file that an earlier release wrote, and this one does not hold, is removed unless edited.
    others: the releases of the course that are known from elsewhere; a release that differs from
    all of them gets the next number.
    Raises LabError where the folder is part of the course itself, is a file, holds the release of
    another course, or holds files (but hidden ones, such as `.git`) and no release.
    """
    folder = folder.resolve()
    if folder == ROOT or folder.is_relative_to(ROOT) or ROOT.is_relative_to(folder):
        raise LabError(
            f"{folder} is or holds the course itself; name a folder outside, such as "
            f"{ROOT.parent / 'students'}."
        )
    if folder.exists() and not folder.is_dir():
        raise LabError(f"{folder} is a file; name a folder, which need not exist.")
    before = read_record(folder)
    found = sorted(path.name for path in folder.glob("[!.]*")) if before is None else []
    if found:
        raise LabError(
            f"{folder} is neither empty nor an earlier release: it holds {found[0]} and no "
            f"{RECORD}; name another folder, which need not exist."
        )
    before = before or Record()
    known = [one for one in (before, *others) if one.course]
    courses = {one.course: one for one in known}
    if len(courses) > 1:
        raise LabError(
            f"{folder} and the releases that are kept here are of several courses "
            f"({', '.join(map(str, courses.values()))}); name another folder, or with --releases "
            "another place to keep them."
        )
    done, was = Written(), {**before.files, **before.made}
    for name, data in files.items():
        _write(folder / name, name, data, was, done, may_overwrite)
    for name in sorted(set(was) - set(files)):
        _remove(folder / name, name, was[name], done)
    there = {name: sha256((folder / name).read_bytes()) for name in files}
    made = {name: sha256(files[name]) for name in done.kept if name in files}
    latest = max(known, key=lambda one: one.number, default=before)
    same = next((one.number for one in (before, latest) if one.course and one.files == there), 0)
    course = latest.course or secrets.token_hex(4)
    done.record = Record(there, course, same or latest.number + 1, made)
    (folder / RECORD).write_text(done.record.text, encoding="utf-8")
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
        if before.get(name) != sha256(there) and not may_overwrite(name):
            done.kept.append(name)
            return
        done.updated.append(name)
    path.write_bytes(data)


def _remove(path: Path, name: str, was: str, done: Written) -> None:
    if not path.is_file():
        return
    if sha256(path.read_bytes()) != was:
        done.kept.append(name)
        return
    path.unlink()
    done.removed.append(name)
    if not any(path.parent.iterdir()):
        path.parent.rmdir()
