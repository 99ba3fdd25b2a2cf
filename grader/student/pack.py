"""The zip that a student hands in: a lab's files, its notebook, a manifest; always equal bytes."""

from __future__ import annotations

import io
import json
import platform
import zipfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from grader.checks.unwritten import absent_symbols
from grader.course.checks_json import file_digest
from grader.course.digest import digest, same, student_files
from grader.course.errors import LabError
from grader.course.lab_toml import Lab
from grader.course.paths import NOTEBOOKS
from grader.course.release_record import Record, read_record
from grader.student_files import state_file
from grader.student_files.lab_folder import require_started, shown
from grader.student_files.state_records import LabState

MANIFEST = "manifest.json"
LARGE = 1_000_000
NO_ANSWER = "YOUR ANSWER HERE"  # what nbgrader puts into a question's cell
EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip can hold
PACKAGES = ("nanovllm-labs", "torch", "numpy", "transformers")


@dataclass(frozen=True)
class Pack:
    """What was packed, and sentences about what the student should know of it."""

    path: Path
    names: tuple[str, ...]
    warnings: tuple[str, ...]


def pack(lab: Lab, entry: LabState, output: Path | None) -> Pack:
    """Write the zip of a started lab; equal files and results give equal bytes."""
    require_started(lab)
    target = _target(lab, output)
    files = [path for path in student_files(lab) if not path.is_symlink()]
    warnings = [*_warnings(lab, entry), *_unfinished(lab)]
    warnings += [
        f"{shown(path)} is a link and was left out; put the file itself there."
        for path in student_files(lab)
        if path.is_symlink()
    ]
    warnings += [
        f"{shown(path)} has {path.stat().st_size / 1e6:.1f} MB; is it meant to be handed in?"
        for path in files
        if path.stat().st_size > LARGE
    ]
    names = {
        f"nanovllm/{lab.package}/{path.relative_to(lab.mine).as_posix()}": path for path in files
    }
    notebook = notebook_of(lab)
    if notebook.is_file():
        names[notebook.name] = notebook
        if unanswered := notebook.read_text(encoding="utf-8").count(f'"{NO_ANSWER}"'):
            cells = "question waits" if unanswered == 1 else "questions wait"
            warnings.append(f"{unanswered} {cells} for an answer in {shown(notebook)}.")
    elif notebook.parent.is_dir():
        warnings.append(f"{shown(notebook)} is missing; the questions in it go unanswered.")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, path in sorted(names.items()):
            archive.writestr(_entry(name), path.read_bytes(), compresslevel=9)
        text = json.dumps(_manifest(lab, entry, names), indent=1, sort_keys=True) + "\n"
        archive.writestr(_entry(MANIFEST), text, compresslevel=9)
    state_file.write_whole(target, buffer.getvalue())
    return Pack(target, tuple(sorted(names)), tuple(warnings))


def notebook_of(lab: Lab) -> Path:
    """The student's notebook of a lab, in which the questions are answered."""
    return NOTEBOOKS / lab.key / f"{lab.key}.ipynb"


def _target(lab: Lab, output: Path | None) -> Path:
    """The file to write, which replaces an earlier pack but nothing else."""
    name = f"{lab.key}.zip"
    target = Path(name) if output is None else output / name if output.is_dir() else output
    if not target.absolute().parent.is_dir():
        raise LabError(f"there is no folder {target.parent}; make it first, or name another.")
    if target.exists() and not _is_pack(target):
        raise LabError(f"{target} is there already and is no pack of a lab; name another file.")
    if target.absolute().resolve().is_relative_to(lab.mine):
        raise LabError(f"{target} would lie inside the lab that it packs; name another folder.")
    return target.absolute()


def _is_pack(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return MANIFEST in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def _entry(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, EPOCH)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.create_system = 3  # Unix, on every machine
    info.external_attr = 0o100644 << 16
    return info


def _manifest(lab: Lab, entry: LabState, names: dict[str, Path]) -> dict[str, object]:
    """Versions, digests and last results; no reasons, which may quote paths of this machine."""
    now = digest(lab)
    results = {
        mode: {
            name: {
                "status": result.status,
                "task": result.task,
                "points": result.points,
                "current": same(result.digest, now, mode),
            }
            for name, result in found.items()
        }
        for mode, found in entry.results.items()
    }
    return {
        "format": 1,
        "lab": lab.key,
        "release": (read_record() or Record()).version,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": {name: _version(name) for name in PACKAGES},
        "digest": now,
        "seconds": {str(task): seconds for task, seconds in sorted(entry.seconds.items())},
        "files": {name: file_digest(path) for name, path in names.items()},
        "results": results,
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _unfinished(lab: Lab) -> list[str]:
    """One sentence that names what is still to be written, if anything is."""
    names = [absent.name for absent in absent_symbols(lab)]
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return [f"not written yet: {', '.join(names[:5])}{more}."] if names else []


def _warnings(lab: Lab, entry: LabState) -> list[str]:
    results = entry.results["isolated"]
    number = f"{lab.number:02d}"
    if not results:
        return [f"no check of {lab.key} has run yet; `lab check {number}` shows where you are."]
    found = []
    now = digest(lab)
    if not all(same(result.digest, now, "isolated") for result in results.values()):
        found.append(f"{lab.key} has changed since its last check; run `lab check {number}`.")
    failing = [name for name, result in results.items() if result.status != "passed"]
    if failing:
        names = ", ".join(name.rpartition("::")[2] for name in failing[:5])
        more = f" and {len(failing) - 5} more" if len(failing) > 5 else ""
        found.append(f"{len(failing)} of {len(results)} checks do not pass: {names}{more}.")
    return found
