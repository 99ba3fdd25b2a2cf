"""Putting stubs back: a whole lab, or the definitions of one task and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from grader.course.errors import LabError
from grader.course.lab_toml import Lab, Task
from grader.course.stubs import starts_empty
from grader.student.definitions import SurgeryError, replaced
from grader.student_files import lab_folder, state_file
from grader.student_files.lab_folder import shown


@dataclass(frozen=True)
class Reset:
    """What a reset will write: new contents by file; an unchanged file is not in it."""

    lab: Lab
    contents: dict[Path, bytes]

    def carry_out(self) -> Path:
        """Back up what will change, write it, and return the backup."""
        existing = [path for path in self.contents if path.exists()]
        kept = lab_folder.backup(self.lab, existing)
        for path, content in self.contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            state_file.write_whole(path, content)
        return kept


def plan_lab(lab: Lab) -> Reset:
    """All files of the lab as handed out; files that the student added stay."""
    _require_whole_stubs(lab)
    fresh = {
        lab.mine / stub.relative_to(lab.stubs): stub.read_bytes()
        for stub in lab_folder.stub_files(lab)
    }
    return _changed(lab, fresh)


def plan_task(lab: Lab, task: Task) -> Reset:
    """The definitions of one task as in the stubs, everything else as the student has it.

    A file that starts empty is put back whole: what its names stand on is the student's choice.
    """
    _require_whole_stubs(lab)
    texts: dict[Path, str] = {}
    for symbol in task.symbols:
        module, _, qualname = symbol.partition(":")
        path = lab.mine / f"{module.replace('.', '/')}.py"
        stub = lab.stubs / path.relative_to(lab.mine)
        pristine = stub.read_bytes().decode()
        if not path.exists() or starts_empty(pristine, qualname):
            texts[path] = pristine
            continue
        try:
            current = texts.get(path) or path.read_bytes().decode()
            texts[path] = replaced(current, qualname, pristine)
        except (SurgeryError, UnicodeDecodeError) as error:
            raise LabError(
                f"{qualname} in {shown(path)} cannot be reset alone: {error}; mend that first, or "
                f"reset the whole lab with `lab reset {lab.number:02d}` (it keeps a backup)."
            ) from None
    return _changed(lab, {path: text.encode() for path, text in texts.items()})


def _changed(lab: Lab, fresh: dict[Path, bytes]) -> Reset:
    changed = {
        path: content
        for path, content in fresh.items()
        if not path.exists() or path.read_bytes() != content
    }
    return Reset(lab, changed)


def _require_whole_stubs(lab: Lab) -> None:
    edited = lab_folder.edited_stubs(lab)
    if edited:
        raise LabError(f"nothing was reset, because the stubs themselves are changed: {edited[0]}")
