"""Make a submission gradable, whatever its notebook is like, and say what was done."""

from __future__ import annotations

import shutil
from pathlib import Path

import nbformat

from grader.classroom.pack_contents import MOST_BYTES, PackError, read_pack

ASIDE = ".unreadable"


def mend(folder: Path, released: Path, assignment: str) -> str:
    """Put a notebook where there is no readable one; "" where nothing had to be done.

    The pack's own notebook if it can be read, else the released one, without answers. An
    unreadable notebook is kept beside it, so that a person can look.
    """
    path = folder / f"{assignment}.ipynb"
    why = unreadable(path)
    if not why:
        aside = path.with_name(path.name + ASIDE)
        return f"what was handed in is kept as {aside.name}" if aside.exists() else ""
    if path.exists() or path.is_symlink():
        path.replace(path.with_name(path.name + ASIDE))
    pack = folder / f"{assignment}.zip"
    if pack.is_file():
        try:
            notebook = read_pack(pack, assignment).notebook
        except PackError:
            notebook = None
        if notebook is not None:
            path.write_bytes(notebook)
            if not unreadable(path):
                return f"{why}; the notebook of the pack was taken"
    shutil.copyfile(released, path)
    return f"{why}; graded with an empty notebook"


def unreadable(path: Path) -> str:
    """Why a notebook cannot be graded, "" where it can."""
    if path.is_symlink():
        return "the notebook is a link"
    if not path.is_file():
        return "there is no notebook"
    if path.stat().st_size > MOST_BYTES:
        return f"the notebook has {path.stat().st_size / 1e6:.0f} MB"
    try:
        nbformat.validate(nbformat.read(path, as_version=4))
    except Exception as error:  # a hostile file can fail anywhere in the reader
        return f"the notebook cannot be read ({type(error).__name__})"
    return ""
