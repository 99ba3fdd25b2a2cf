"""What a result was measured on: a digest of the student's files and of the checks."""

from __future__ import annotations

import hashlib
from pathlib import Path

from grader.course.lab_toml import Lab, labs

IGNORED = {"__pycache__", ".ipynb_checkpoints"}
RECORDED_RUNS = "recorded.json"  # what the reference does with random inputs


def student_files(lab: Lab) -> list[Path]:
    """The files of the student's folder of a lab that count, in order."""
    return _files(lab.mine)


def check_files(lab: Lab) -> list[Path]:
    """The lab's checks, and what they compare with."""
    return sorted([*lab.folder.glob("test_*.py"), *lab.folder.glob(RECORDED_RUNS)])


def digest(lab: Lab) -> str:
    """`own-chain`: the lab's own files and checks, then the student's files of all other labs.

    An isolated result depends on the first part only, a result of `--mine` on both.
    """
    own = _fold([*student_files(lab), *check_files(lab)])
    others = [
        path for other in labs() if other.number != lab.number for path in student_files(other)
    ]
    return f"{own}-{_fold(others)}"


def same(recorded: str, now: str, mode: str) -> bool:
    """Whether a result recorded under one digest still speaks of the files as they are now."""
    if mode == "mine":
        return recorded == now
    return recorded.partition("-")[0] == now.partition("-")[0]


def _files(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file()
        and not path.name.startswith(".")
        and path.suffix != ".pyc"
        and not IGNORED & set(path.relative_to(folder).parts)
    )


def _fold(paths: list[Path]) -> str:
    total = hashlib.sha256()
    for path in paths:
        try:
            content = path.read_bytes()
        except OSError:  # deleted this moment by an editor, or not readable
            content = b"unreadable"
        total.update(f"{path.parent.name}/{path.name}\0{len(content)}\0".encode() + content)
    return total.hexdigest()[:16]
