"""What a hostile folder or notebook could do to those who are graded after it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from nbclient.exceptions import CellTimeoutError

from grader.catalog import find_lab
from grader.classroom.autograde import MOST_BYTES, autograde, submission_digest
from grader.classroom.boxed import BoxedExecute
from grader.grading.scratch import remove

LAB = find_lab(1)


def test_a_folder_that_cannot_be_mended_stops_nobody(tmp_path: Path) -> None:
    for student in ("ada", "bob"):
        aside = tmp_path / "submitted" / student / "lab01.ipynb.unreadable"
        aside.mkdir(parents=True)
        (aside / "x").touch()
        (aside.parent / "lab01.ipynb").write_text("no notebook")
    course = SimpleNamespace(
        require_generated=lambda lab: None,
        released=lambda lab: tmp_path / "released.ipynb",
        place=lambda step, student, lab: tmp_path / step / student,
    )
    found = list(autograde(course, LAB, ["ada", "bob"]))
    assert [(one.student, one.failed) for one in found] == [("ada", True), ("bob", True)]
    assert "lab01.ipynb" in found[0].note


def test_a_file_with_a_hole_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "hole.bin").open("wb") as file:
        file.truncate(MOST_BYTES * 400)  # 100 GB
    (tmp_path / os.fsdecode(b"\xff.py")).write_text("x = 1\n")
    first = submission_digest(tmp_path)
    (tmp_path / os.fsdecode(b"\xff.py")).write_text("x = 2\n")
    assert submission_digest(tmp_path) != first


def test_a_folder_deeper_than_python_goes_is_removed(tmp_path: Path) -> None:
    folder, home = tmp_path / "kernel", os.getcwd()
    folder.mkdir()
    try:
        os.chdir(folder)
        for _ in range(3000):
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.chdir(home)
    remove(folder)
    assert not folder.exists()


def test_all_cells_of_a_notebook_share_its_time() -> None:
    execute = BoxedExecute(timeout=120, max_seconds=900)
    execute._end = time.monotonic() + 60
    assert 0 < execute._get_timeout(None) <= 60
    execute._end = time.monotonic() + 600
    assert execute._get_timeout(None) == 120
    execute._end = time.monotonic() - 1
    with pytest.raises(CellTimeoutError, match="more than 900 seconds"):
        execute._get_timeout(None)
