"""The files in a zip or folder that somebody handed in: their names, and a way to read each."""

from __future__ import annotations

import os
import stat
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from grader.grading.zip_methods import METHODS
from grader.sandbox.limits import Limits

ENTRIES = 20_000
LONGEST = 250  # bytes of a path: no system takes a longer name, and each of its parts costs time
COMPRESSION = 8  # a zip may be this many times the limit before it is opened at all
CENTRAL = b"PK\1\2"  # each entry of a zip's directory begins with it
Opener = Callable[[int], bytes]  # at most so many bytes of one file


class Unreadable(Exception):
    """A submission that cannot be read at all; the text is for the student."""


def entries_of(path: Path, limits: Limits, notes: list[str]) -> dict[str, Opener]:
    """What can be read below a path; of two entries with one name the last, as unzip has it."""
    found = _folder(path, notes) if path.is_dir() else _zip(path, limits, notes)
    return {name: opener for name, opener in found if not _too_long(name, notes)}


def shown(name: str, most: int = 100) -> str:
    """A text of theirs for one line of a report."""
    return "".join(c if c.isprintable() else "?" for c in name[:most])


def _folder(root: Path, notes: list[str]) -> Iterator[tuple[str, Opener]]:
    count = 0
    for folder, names, files in os.walk(root, followlinks=False):
        for name in [*names, *files]:
            path = Path(folder, name)
            count += 1
            if count > ENTRIES:
                raise Unreadable(f"it holds more than {ENTRIES} files.")
            mode = path.lstat().st_mode
            if stat.S_ISREG(mode):
                yield path.relative_to(root).as_posix(), lambda most, path=path: _bytes(path, most)
            elif not stat.S_ISDIR(mode):
                notes.append(f"{shown(name)} is a link or no plain file, and was left out.")


def _too_long(name: str, notes: list[str]) -> bool:
    found = len(os.fsencode(name)) > LONGEST
    if found:
        notes.append(f"{shown(name)} has too long a name, and was left out.")
    return found


def _bytes(path: Path, most: int) -> bytes:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        return file.read(most)


def _zip(path: Path, limits: Limits, notes: list[str]) -> Iterator[tuple[str, Opener]]:
    if not path.is_file():
        raise Unreadable("it is neither a zip nor a folder.")
    if path.stat().st_size > COMPRESSION * limits.submission_mb << 20:
        raise Unreadable(f"it is larger than {COMPRESSION * limits.submission_mb} MB.")
    if not zipfile.is_zipfile(path):
        raise Unreadable("it is not a zip; `lab pack` makes one.")
    if path.read_bytes().count(CENTRAL) > ENTRIES:  # before any is looked at
        raise Unreadable(f"it holds more than {ENTRIES} files.")
    archive = zipfile.ZipFile(path)
    for info in archive.infolist():
        parts = PurePosixPath(info.filename.replace("\\", "/")).parts
        if not parts or info.is_dir():
            continue
        if stat.S_ISLNK(info.external_attr >> 16):
            notes.append(f"{shown(info.filename)} is a link, and was left out.")
        elif ".." in parts or info.filename.startswith("/"):
            notes.append(f"{shown(info.filename)} points outside the zip, and was left out.")
        elif info.compress_type not in METHODS:
            what = shown(info.filename)
            notes.append(f"{what} is packed by another method than deflate, and was left out.")
        elif parts[0] != "__MACOSX":
            yield "/".join(parts), lambda most, info=info: _member(archive, info, most)


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, most: int) -> bytes:
    with archive.open(info) as file:
        return file.read(most)
