"""What a hostile folder or notebook could do to those who are graded after it."""

from __future__ import annotations

import os
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from nbclient.exceptions import CellTimeoutError
from nbgrader.api import Student

from grader.classroom import collect_uploads
from grader.classroom.autograde import MOST_BYTES, autograde, submission_digest
from grader.classroom.boxed_execute import BoxedExecute
from grader.classroom.collect_uploads import PackExtractor
from grader.course.lab_toml import find_lab
from grader.sandbox.scratch_folder import remove

LAB = find_lab(1)


def test_a_folder_that_cannot_be_mended_stops_nobody(tmp_path: Path) -> None:
    for student in ("ada", "bob"):
        aside = tmp_path / "submitted" / student / "lab01.ipynb.unreadable"
        aside.mkdir(parents=True)
        (aside / "x").touch()
        (aside.parent / "lab01.ipynb").write_text("no notebook")
    course = SimpleNamespace(
        require_generated=lambda lab: None,
        require_settings=lambda: None,
        released=lambda lab: tmp_path / "released.ipynb",
        place=lambda step, student, lab: tmp_path / step / student,
    )
    found = list(autograde(course, LAB, ["ada", "bob"]))
    assert [(one.student, one.failed) for one in found] == [("ada", True), ("bob", True)]
    assert "lab01.ipynb" in found[0].note


@pytest.mark.parametrize(
    "name", ["mallory.zip", "Mal Lory.zip", "mallory_66_5_lab01.zip", "lab01_mallory.zip"]
)
def test_a_students_zip_hands_in_for_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    roster = [Student(id="bob"), Student(id="mallory", first_name="Mal", last_name="Lory")]
    monkeypatch.setattr(collect_uploads, "roster_of", lambda plugin: roster, raising=False)
    archive, target = tmp_path / "archive", tmp_path / "downloaded" / "lab01" / "extracted"
    archive.mkdir()
    for path in (archive / name, archive / "submissions.zip"):
        with zipfile.ZipFile(path, "w") as file:
            file.writestr(f"{'bob' if path.name == name else 'ada'}_12_34_lab01.zip", b"PK")
    PackExtractor().extract(str(archive), str(target))
    assert {path.name for path in target.iterdir()} == {"ada_12_34_lab01", Path(name).stem}


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
