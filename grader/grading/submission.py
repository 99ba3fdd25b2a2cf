"""Read what a student handed in: a pack, another zip or a folder; nothing in it is trusted.

Only Python files of the lab's own package are taken, into memory, each and all together within
limits. Nothing is unpacked on this machine, no link is followed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from grader.course.lab_toml import Lab, labs
from grader.grading.zip_or_folder import Opener, Unreadable, entries_of, shown
from grader.sandbox.limits import Limits

LEFT_OUT = {"conftest.py", "sitecustomize.py", "usercustomize.py", "__main__.py"}
NOTES = 10
MANIFEST, MANIFEST_BYTES = "manifest.json", 1 << 20


@dataclass(frozen=True)
class Submission:
    """The files that count, by path below the package folder, and what to say about the rest."""

    files: dict[str, bytes]
    notes: tuple[str, ...] = ()
    problem: str = ""  # why there is nothing to grade
    release: str = ""  # what it says that it was made with: the name of a kept release


def read(path: Path, lab: Lab, limits: Limits) -> Submission:
    """The files of `lab` in a submission; never raises for what is in it."""
    notes: list[str] = []
    try:
        entries = entries_of(path, limits, notes)
        chosen = _of_lab(list(entries), lab)
        files = _take(chosen, entries, limits, notes)
        release = _release(entries)
    except Unreadable as error:
        return Submission({}, _few(notes), str(error))
    except Exception as error:  # damaged data can fail anywhere: LZMAError, IndexError, MemoryError
        return Submission({}, _few(notes), shown(f"it cannot be read: {error}", 300))
    return Submission(files, _few(notes), release=release)


def _release(entries: dict[str, Opener]) -> str:
    """By the manifest of its pack; "" where there is none, or none that can be read."""
    found = [name for name in entries if PurePosixPath(name).name == MANIFEST]
    try:
        name = min(found, key=lambda name: (name.count("/"), name))
        said = json.loads(entries[name](MANIFEST_BYTES))["release"]
        return f"{said['course']}-{said['number']}" if said["course"] else ""
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""


def _few(notes: list[str]) -> tuple[str, ...]:
    """The first notes, each once, and how many more there are."""
    found = tuple(dict.fromkeys(notes))
    more = len(found) - NOTES
    return (*found[:NOTES], f"{more} more were left out.") if more > 0 else found


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
        *folders, file = PurePosixPath(path).parts
        names = [*folders, file.removesuffix(".py")]
        if file in LEFT_OUT or not all(name.isidentifier() for name in names):
            notes.append(f"{shown(path)} is not a file of the lab, and was left out.")
            continue
        content = entries[name](left + 1)
        left -= len(content)
        if left < 0 or len(files) >= limits.files:
            raise Unreadable(
                f"its Python files are more than {limits.submission_mb} MB or {limits.files} files."
            )
        files[path] = content
    return files
