"""The student's folder of a lab: started from the stubs, backed up, never overwritten."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import uuid
from dataclasses import dataclass
from pathlib import Path

from grader.course.checks_json import file_digest
from grader.course.digest import IGNORED
from grader.course.errors import LabError, sentence_of
from grader.course.integrity import tampered
from grader.course.lab_toml import Lab
from grader.course.paths import ROOT
from grader.student_files import lab_state, state_file


@dataclass(frozen=True)
class EditedStub:
    """A stub that was edited or deleted in place of the student's own file."""

    lab: Lab
    stub: Path
    was: str  # sha256 of the stub as handed out
    how: str  # "edited" or "deleted"

    @property
    def mine(self) -> Path:
        return self.lab.mine / self.stub.relative_to(self.lab.stubs)

    @property
    def mine_is_untouched(self) -> bool:
        return not self.mine.exists() or file_digest(self.mine) == self.was

    def __str__(self) -> str:
        if self.how == "deleted":
            return f"{shown(self.stub)} is gone; `{git_checkout(self.stub)}` brings it back."
        return (
            f"{shown(self.stub)} was edited, but the checks run {shown(self.mine)}; "
            f"`lab start {self.lab.number:02d} --adopt` takes your edit over into your own file."
        )


def shown(path: Path) -> str:
    """A path as the person would type it from where they stand."""
    here = Path.cwd()
    inside = path.is_relative_to(ROOT) and here.is_relative_to(ROOT)
    return os.path.relpath(path, here) if inside else str(path)


def git_checkout(path: Path) -> str:
    """The command that brings back a file or folder as it was handed out."""
    return shlex.join(["git", "checkout", shown(path)])


def stub_files(lab: Lab) -> list[Path]:
    """The files that starting the lab copies."""
    found = [
        path
        for path in sorted(lab.stubs.rglob("*"))
        if path.is_file()
        and path.suffix != ".pyc"
        and not IGNORED & set(path.relative_to(lab.stubs).parts)
    ]
    if not found:
        raise LabError(
            f"{lab.key} has no stubs in {shown(lab.stubs)}; `{git_checkout(lab.folder)}` "
            "brings them back (maintainers: `python -m grader build`)."
        )
    return found


def start(lab: Lab) -> list[Path]:
    """Copy the stubs that the student's folder lacks and return the new files.

    A file that exists is never touched. Raises LabError where the folder cannot be written.
    """
    added = []
    lab_state.record_saves()  # until now the time was another lab's
    try:
        for stub in stub_files(lab):
            target = lab.mine / stub.relative_to(lab.stubs)
            if not os.path.lexists(target):
                target.parent.mkdir(parents=True, exist_ok=True)
                state_file.write_whole(target, stub.read_bytes())
                added.append(target)
    except OSError as error:
        raise LabError(f"{lab.key} cannot be started: {sentence_of(error)}") from None
    lab_state.record_start(lab)
    return added


def require_started(lab: Lab) -> None:
    if not lab.started:
        raise LabError(f"{lab.key} is not started; `lab start {lab.number:02d}` starts it.")


def edited_stubs(lab: Lab) -> list[EditedStub]:
    """The stubs that are not as handed out, each of which says what to do about it."""
    return [EditedStub(lab, item.path, item.was, item.how) for item in tampered(lab, "stubs/")]


def adopt(item: EditedStub) -> tuple[Path | None, bool]:
    """Take an edited stub over into the student's file; returns its backup, and if the stub is
    as handed out again."""
    edit = item.stub.read_bytes()
    kept = backup(item.lab, [item.mine]) if item.mine.exists() else None
    pristine = _pristine(item)
    item.mine.parent.mkdir(parents=True, exist_ok=True)
    state_file.write_whole(item.mine, edit)
    if pristine is not None:
        state_file.write_whole(item.stub, pristine)
    return kept, pristine is not None


def _pristine(item: EditedStub) -> bytes | None:
    """The stub as handed out: from the student's untouched copy, else from git."""
    if item.mine.exists() and item.mine_is_untouched:
        return item.mine.read_bytes()
    command = ["git", "-C", str(ROOT), "show", f"HEAD:{item.stub.relative_to(ROOT).as_posix()}"]
    try:
        found = subprocess.run(command, capture_output=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    probe = state_file.state_folder() / f".stub-{uuid.uuid4().hex}"
    probe.write_bytes(found)
    try:
        return found if file_digest(probe) == item.was else None
    finally:
        probe.unlink()


def backups_folder() -> Path:
    return state_file.state_folder() / "backups"


def backup(lab: Lab, files: list[Path] | None = None) -> Path:
    """Copy the student's folder of a lab, or some files of it, under `.lab/backups/`."""
    kept = backups_folder() / f"{lab.key}-{state_file.timestamp()}"
    try:
        if files is None:
            shutil.copytree(lab.mine, kept, ignore=shutil.ignore_patterns("__pycache__"))
        for path in files or []:
            target = kept / path.relative_to(lab.mine)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
    except (OSError, shutil.Error) as error:
        text = sentence_of(error) if isinstance(error, OSError) and error.errno else str(error)
        raise LabError(f"nothing was changed, because no backup could be made: {text}") from None
    return kept


def how_to_get_back(lab: Lab, kept: Path) -> str:
    """The command that undoes what the backup was made for."""
    return shlex.join(["cp", "-R", f"{shown(kept)}/.", f"{shown(lab.mine)}/"])
