"""Read what a student handed in: a pack, another zip or a folder; nothing in it is trusted.

Only Python files of the lab's own package are taken, into memory, each and all together within
limits. Nothing is unpacked on this machine, no link is followed.
"""

from __future__ import annotations

import os
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from grader.catalog import Lab, labs
from grader.grading.limits import Limits

LEFT_OUT = {"conftest.py", "sitecustomize.py", "usercustomize.py", "__main__.py"}
ENTRIES = 20_000
COMPRESSION = 8  # a zip may be this many times the limit before it is opened at all
Opener = Callable[[int], bytes]  # at most so many bytes of one file


@dataclass(frozen=True)
class Submission:
    """The files that count, by path below the package folder, and what to say about the rest."""

    files: dict[str, bytes]
    notes: tuple[str, ...] = ()
    problem: str = ""  # why there is nothing to grade


class Unreadable(Exception):
    """A submission that cannot be read at all; the text is for the student."""


def read(path: Path, lab: Lab, limits: Limits) -> Submission:
    """The files of `lab` in a submission; never raises for what is in it."""
    notes: list[str] = []
    try:
        entries = dict(_folder(path, notes) if path.is_dir() else _zip(path, limits, notes))
        chosen = _of_lab(list(entries), lab)
        files = _take(chosen, entries, limits, notes)
    except Unreadable as error:
        return Submission({}, tuple(notes), str(error))
    except (OSError, ValueError, zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError,
            RuntimeError) as error:  # fmt: skip
        return Submission({}, tuple(notes), f"it cannot be read: {error}"[:300])
    return Submission(files, tuple(dict.fromkeys(notes)))


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
                notes.append(f"{_shown(name)} is a link or no plain file, and was left out.")


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
    archive = zipfile.ZipFile(path)
    if len(archive.infolist()) > ENTRIES:
        raise Unreadable(f"it holds more than {ENTRIES} files.")
    for info in archive.infolist():
        parts = PurePosixPath(info.filename.replace("\\", "/")).parts
        if info.is_dir():
            continue
        if stat.S_ISLNK(info.external_attr >> 16):
            notes.append(f"{_shown(info.filename)} is a link, and was left out.")
        elif ".." in parts or info.filename.startswith("/"):
            notes.append(f"{_shown(info.filename)} points outside the zip, and was left out.")
        elif parts and parts[0] != "__MACOSX":
            yield "/".join(parts), lambda most, info=info: _member(archive, info, most)


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, most: int) -> bytes:
    with archive.open(info) as file:
        return file.read(most)


def _of_lab(names: list[str], lab: Lab) -> dict[str, str]:
    """Path below the package folder -> name in the submission, from the outermost such folder."""
    python = [name for name in names if name.endswith(".py")]
    homes = _homes(python, lab.package)
    if homes:
        home = min(homes, key=lambda found: (found.count("/"), len(found), found))
        return {name.removeprefix(home): name for name in python if name.startswith(home)}
    for other in labs():
        if other.number != lab.number and _homes(python, other.package):
            raise Unreadable(f"it holds {other.key} ({other.package}), and not {lab.key}.")
    counts = {other.key: len(_written(python, other)) for other in labs()}
    likeliest = max(counts, key=lambda key: (counts[key], key == lab.key))
    if counts[likeliest] and likeliest != lab.key:
        raise Unreadable(f"its files look like those of {likeliest}, and not of {lab.key}.")
    bare = _written(python, lab)
    if not bare:
        raise Unreadable(f"it holds no Python file of {lab.key} (nanovllm/{lab.package}/).")
    top = min(
        (str(PurePosixPath(name).parent) for name in bare), key=lambda found: found.count("/")
    )
    home = "" if top == "." else f"{top}/"
    return {name.removeprefix(home): name for name in python if name.startswith(home)}


def _written(names: list[str], lab: Lab) -> list[str]:
    """The names that are called like a file that the student of a lab writes."""
    modules = {f"{symbol.partition(':')[0]}.py" for symbol in lab.task_of_symbol}
    return [name for name in names if PurePosixPath(name).name in modules]


def _homes(names: list[str], package: str) -> set[str]:
    """Every folder in the submission that is called like the package."""
    return {
        "".join(f"{part}/" for part in parts[: i + 1])
        for parts in (PurePosixPath(name).parts for name in names)
        for i, part in enumerate(parts[:-1])
        if part == package
    }


def _take(
    chosen: dict[str, str], entries: dict[str, Opener], limits: Limits, notes: list[str]
) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    left = limits.submission_mb << 20
    for path, name in sorted(chosen.items()):
        parts = PurePosixPath(path).parts
        if parts[-1] in LEFT_OUT or not all(
            part.removesuffix(".py").isidentifier() for part in parts
        ):
            notes.append(f"{_shown(path)} is not a file of the lab, and was left out.")
            continue
        content = entries[name](left + 1)
        left -= len(content)
        if left < 0 or len(files) >= limits.files:
            raise Unreadable(
                f"its Python files are more than {limits.submission_mb} MB or {limits.files} files."
            )
        files[path] = content
    return files


def _shown(name: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in name)[:100]
