"""`lab pack`: the student's files, a manifest, the same bytes each time, no local paths."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from tests.lab_course import ALL_PASS, Course, make_course


@pytest.fixture
def course(tmp_path: Path) -> Course:
    return make_course(tmp_path, started="1")


def test_the_pack_holds_the_files_and_a_manifest(course: Course) -> None:
    course.solve("sums.py", "scale.py")
    (course.mine / "__pycache__").mkdir()
    (course.mine / "__pycache__" / "sums.pyc").write_bytes(b"x")
    (course.mine / ".secret").write_text("x")
    course.record(**ALL_PASS)
    done = course.lab("pack", "1")
    assert done.returncode == 0
    assert done.stderr == ""
    with zipfile.ZipFile(course.root / "lab01.zip") as archive:
        names = archive.namelist()
        manifest = json.loads(archive.read("manifest.json"))
        text = archive.read("nanovllm/tokenization/sums.py")
    assert names == [
        f"nanovllm/tokenization/{name}.py" for name in ("__init__", "scale", "sums")
    ] + ["manifest.json"]
    assert text == (course.mine / "sums.py").read_bytes()
    assert manifest["lab"] == "lab01"
    assert {one["current"] for one in manifest["results"]["isolated"].values()} == {True}
    assert str(course.root) not in json.dumps(manifest)


def test_equal_files_give_equal_bytes(course: Course) -> None:
    course.record(**ALL_PASS)
    course.lab("pack", "1", "-o", "a.zip")
    for path in course.mine.glob("*.py"):
        path.touch()
        path.chmod(0o600)
    course.lab("pack", "1", "-o", "b.zip", cwd=course.root)
    assert (course.root / "a.zip").read_bytes() == (course.root / "b.zip").read_bytes()


def test_it_warns_and_packs(course: Course) -> None:
    assert "no check of lab01 has run" in course.lab("pack", "1").stderr
    course.record(**ALL_PASS | {"test_push": "failed"})
    (course.mine / "big.bin").write_bytes(b"0" * 2_000_000)
    (course.mine / "link.py").symlink_to("/etc/hostname")
    done = course.lab("pack", "1")
    assert done.returncode == 0
    assert "1 of 4 checks do not pass: test_push" in done.stderr
    assert "changed since its last check" in done.stderr
    assert "big.bin has 2.0 MB" in done.stderr
    with zipfile.ZipFile(course.root / "lab01.zip") as archive:
        assert "nanovllm/tokenization/link.py" not in archive.namelist()


def test_it_refuses(course: Course) -> None:
    assert "lab02 is not started" in course.refused("pack", "2")
    source = course.mine / "sums.py"
    before = source.read_bytes()
    assert "is no pack of a lab" in course.refused("pack", "1", "-o", str(source))
    assert source.read_bytes() == before
    assert "inside the lab" in course.refused("pack", "1", "-o", str(course.mine))
    assert "no folder" in course.refused("pack", "1", "-o", "nowhere/a.zip")


def test_the_notebook_goes_along(course: Course) -> None:
    course.solve("sums.py", "scale.py")
    course.record(**ALL_PASS)
    notebook = course.root / "notebooks" / "lab01" / "lab01.ipynb"
    notebook.parent.mkdir(parents=True)
    done = course.lab("pack", "1")
    assert "lab01.ipynb is missing; the questions in it go unanswered." in done.stderr
    notebook.write_text('{"cells": [{"source": ["YOUR ANSWER HERE"]}]}')
    assert "1 question waits for an answer in" in course.lab("pack", "1").stderr
    notebook.write_text("{}")
    assert course.lab("pack", "1").stderr == ""
    with zipfile.ZipFile(course.root / "lab01.zip") as archive:
        assert archive.read("lab01.ipynb") == b"{}"
        assert "lab01.ipynb" in json.loads(archive.read("manifest.json"))["files"]


def test_submit_packs_and_hands_the_folder_to_nbgrader(course: Course, tmp_path: Path) -> None:
    """nbgrader itself is in `test_nbgrader_handbook.py`; here a stand-in says yes, then no."""
    course.record(**ALL_PASS)
    (course.root / "notebooks" / "lab01").mkdir(parents=True)
    (course.root / "notebooks" / "lab01" / "lab01.ipynb").write_text("{}")
    programs = tmp_path / "programs"
    programs.mkdir()
    stand_in = programs / "nbgrader"
    stand_in.write_text(f'#!/bin/sh\necho "$PWD $*" > {tmp_path}/called\n')
    stand_in.chmod(0o755)
    path = f"{programs}:/usr/bin:/bin"
    done = course.lab("submit", "1", "--course", "fall", PATH=path)
    assert "lab01 is handed in" in done.stdout
    called = (tmp_path / "called").read_text().split()
    assert called == [str(course.root / "notebooks"), "submit", "lab01", "--course", "fall"]
    assert (course.root / "notebooks" / "lab01" / "lab01.zip").is_file()
    stand_in.write_text('#!/bin/sh\necho "[SubmitApp | ERROR] No such course" >&2\nexit 1\n')
    sentence = course.refused("submit", "1", PATH=path)
    assert "did not take lab01 (No such course); upload" in sentence
