"""A course that is running: releases with numbers, updates that lose nothing, fair grades."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from grader.course import switch_over
from grader.course.errors import LabError
from grader.course.release_record import RECORD, Record, read_record
from grader.release.contents import contents
from grader.release.keep_release import keep, kept_records
from grader.release.lab_selection import select
from grader.release.write_release import write_release
from tests.test_release import Students, never, write_lab

Files = dict[str, bytes]
HANDOUT, CHECKS = "labs/lab01/README.md", "labs/lab01/test_1_train.py"
HINTS, NOTEBOOK = "labs/lab01/hints.txt", "notebooks/lab01/lab01.ipynb"
STUBS, MINE = "labs/lab01/stubs", "nanovllm/tokenization"
GIVEN, WRITTEN, EXTRA = "errors.py", "encode.py", "extra.py"


@pytest.fixture(scope="module")
def first() -> Files:
    found = contents(select("01-02", "none"))
    return {name: data for name, data in found.items() if not name.endswith(".safetensors")}


@pytest.fixture(scope="module")
def second(first: Files) -> Files:
    """A later release: something new of each kind."""
    checks = first[CHECKS].replace(b"def test_ties", b"def test_ties_of_all")
    written = first[f"{STUBS}/{WRITTEN}"].replace(b"raise NotImpl", b"pass\n    raise NotImpl", 1)
    new = {
        HANDOUT: first[HANDOUT].replace(b"### Task 2", b"A word more.\n\n### Task 2"),
        CHECKS: checks,
        HINTS: first[HINTS] + b"\n",
        NOTEBOOK: first[NOTEBOOK] + b"\n",
        f"{STUBS}/{GIVEN}": first[f"{STUBS}/{GIVEN}"] + b"\n# mended\n",
        f"{STUBS}/{WRITTEN}": written,
        f"{STUBS}/{EXTRA}": b'"""New."""\n',
        "labs/lab02/README.md": first["labs/lab02/README.md"] + b"More.\n",
        "labs/lab02/stubs/rope.py": first["labs/lab02/stubs/rope.py"] + b"\n# mended\n",
        "grader/student/board.py": first["grader/student/board.py"] + b"\n# mended\n",
        "a/new/file.txt": b"new",
    }
    assert all(new[name] != first.get(name) for name in new)
    return {k: v for k, v in {**first, **new}.items() if k != "labs/lab02/predict.py"}


@pytest.fixture
def released(first: Files, second: Files, tmp_path: Path) -> Callable[..., Path]:
    """Folders of both releases, and of others."""

    def make(name: str, files: Files, *others: Record) -> Path:
        write_release(files, tmp_path / name, never, others)
        return tmp_path / name

    return make


@pytest.fixture
def students(first: Files, released: Callable[..., Path]) -> Students:
    """A copy in which somebody works: lab 01 begun, a notebook and a handout written in."""
    root = released("students", first)
    copy = Students(root)
    write_lab(copy, 1)
    for stub in (root / STUBS).glob("*.py"):
        if stub.name != WRITTEN:
            (root / MINE / stub.name).write_bytes(stub.read_bytes())
    (root / MINE / "own.py").write_text("own = 1\n")
    return copy


def lab(copy: Students, *words: str) -> subprocess.CompletedProcess[str]:
    return copy.run("grader.student.lab_command", *words)


def tree(root: Path) -> dict[str, bytes]:
    """Every file but the student's records and what Python leaves behind."""
    found = (path for path in root.rglob("*") if path.is_file() and ".lab" not in path.parts)
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in found
        if "__pycache__" not in path.parts
    }


def newer(students: Students, released: Callable[..., Path], files: Files) -> Path:
    return released("newer", files, read_record(students.root))


def zipped(folder: Path) -> Path:
    """As a code host makes it: everything in one folder."""
    target = folder.with_suffix(".zip")
    with zipfile.ZipFile(target, "w") as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.write(path, f"course-main/{path.relative_to(folder)}")
    return target


def test_a_release_has_a_number_that_rises_with_every_change(
    first: Files, second: Files, released: Callable[..., Path], tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    one = released("one", first)
    keep(one, read_record(one), kept)
    assert read_record(one).number == 1
    assert read_record(released("one", first)).number == 1  # the same again
    again = read_record(released("two", first, *kept_records(kept)))
    assert (again.number, again.course) == (1, read_record(one).course)
    changed = read_record(released("two", second, *kept_records(kept)))
    assert (changed.number, changed.course) == (2, again.course)
    back = read_record(released("two", first, *kept_records(kept)))
    assert back.number == 3  # the first again is the newest all the same
    assert (kept / f"{again.course}-1" / CHECKS).read_bytes() == first[CHECKS]
    other = released("other", first)
    with pytest.raises(LabError, match="of several courses"):
        released("one", first, read_record(other))


def test_what_an_instructor_writes_into_a_release_belongs_to_it(
    first: Files, released: Callable[..., Path]
) -> None:
    root = released("students", first)
    (root / "README.md").write_text("We meet on Mondays.")
    write_release(first, root, lambda name: False)
    record = read_record(root)
    assert record.number == 2 and list(record.made) == ["README.md"]
    done = write_release(first | {"README.md": b"newer"}, root, lambda name: False)
    assert done.kept == ["README.md"]  # still known as edited


@pytest.mark.parametrize("shape", ["folder", "zip"])
def test_an_update_brings_all_and_touches_nothing_of_the_students(
    students: Students, released: Callable[..., Path], second: Files, shape: str
) -> None:
    root = students.root
    (root / NOTEBOOK).write_text("my answers")
    (root / HANDOUT).write_text("my notes")
    (root / ".lab").mkdir(exist_ok=True)
    (root / ".lab" / "state.json").write_text('{"labs": {}}')
    before = tree(root)
    source = newer(students, released, second)
    done = lab(students, "update", str(zipped(source) if shape == "zip" else source))
    assert done.returncode == 0, done.stdout + done.stderr
    after = tree(root)
    theirs = [NOTEBOOK, HANDOUT, f"{MINE}/{WRITTEN}", f"{MINE}/own.py"]
    assert all(after[name] == before[name] for name in theirs)
    assert json.loads((root / ".lab" / "state.json").read_text()) == {"labs": {}}
    for name, data in second.items():
        assert name in theirs or after[name] == data, name
    assert "labs/lab02/predict.py" not in after
    assert after[f"{MINE}/{GIVEN}"] == second[f"{STUBS}/{GIVEN}"]  # it was as its stub
    assert after[f"{MINE}/{EXTRA}"] == second[f"{STUBS}/{EXTRA}"]
    assert f"{MINE}/rope.py" not in after and not (root / "nanovllm" / "model").exists()
    assert read_record(root).number == 2
    assert (
        "lab01 has new hints, checks (test_ties_of_all, test_ties); `lab check 01` runs it."
        in done.stdout
    )
    for name in (NOTEBOOK, HANDOUT):
        new = root / ".lab" / "new" / "release-2" / name
        assert new.read_bytes() == second[name]
        assert f"cp {new.relative_to(root)} {name}" in done.stderr
    assert f"{MINE}/{WRITTEN} is yours and stays; its stub {STUBS}/{WRITTEN} has changed in" in (
        done.stderr
    )
    again = lab(students, "update", str(source))
    assert again.returncode == 2 and "is release 2" in again.stderr
    assert tree(root) == after
    undone = lab(students, "update", "--undo")
    assert undone.returncode == 0, undone.stderr
    assert tree(root) == before
    assert "no update to undo" in lab(students, "update", "--undo").stderr


def test_undo_after_an_undo_goes_to_the_release_before_the_last_update(
    students: Students, released: Callable[..., Path], second: Files
) -> None:
    before = tree(students.root)
    source = newer(students, released, second)
    third = source.with_name("third")
    shutil.copytree(source, third)
    write_release(second | {HANDOUT: b"of release 3"}, third, lambda name: True)
    for words in (["update", str(source)], ["update", "--undo"], ["update", str(third)]):
        done = lab(students, *words)
        assert done.returncode == 0, done.stderr
    assert (students.root / HANDOUT).read_bytes() == b"of release 3"
    assert lab(students, "update", "--undo").returncode == 0
    assert tree(students.root) == before


def test_undo_keeps_what_was_written_since(
    students: Students, released: Callable[..., Path], first: Files, second: Files
) -> None:
    root = students.root
    lab(students, "update", str(newer(students, released, second)))
    for name in (NOTEBOOK, f"{MINE}/{GIVEN}"):
        (root / name).write_text("written since")
    undone = lab(students, "update", "--undo")
    assert undone.returncode == 0
    assert (root / NOTEBOOK).read_text() == (root / MINE / GIVEN).read_text() == "written since"
    assert f"{NOTEBOOK} was changed here and stays" in undone.stderr
    assert f"{MINE}/{GIVEN} is yours and stays" in undone.stderr
    kept = root / ".lab" / "new" / "release-1" / NOTEBOOK
    assert kept.read_bytes() == first[NOTEBOOK]
    assert (root / CHECKS).read_bytes() == first[CHECKS]


@pytest.mark.parametrize("moves", [0, 1, 5])
def test_an_update_that_is_killed_is_completed_by_what_runs_next(
    students: Students, released: Callable[..., Path], second: Files, tmp_path: Path, moves: int
) -> None:
    """Ended after so many files have moved: all is old until the first, and all new after it."""
    source = newer(students, released, second)
    program = f"""
import os, sys
from pathlib import Path
left, replace = {moves}, Path.replace
def cut(self, target):
    global left
    if ".lab/update.ready/new" in str(self):
        left -= 1
        if left < 0:
            os._exit(9)
    return replace(self, target)
Path.replace = cut
sys.argv = ["lab", "update", {str(source)!r}]
from grader.student.lab_command import main
main()
"""
    (tmp_path / "killed.py").write_text(program)
    before = tree(students.root)
    environment = {"PYTHONPATH": str(students.root), "PATH": "/usr/bin:/bin"}
    words = [sys.executable, tmp_path / "killed.py"]
    ended = subprocess.run(words, cwd=students.root, env=environment, capture_output=True)
    assert ended.returncode == 9, ended.stderr
    changed = [name for name, data in tree(students.root).items() if before.get(name) != data]
    assert len(changed) == moves
    assert lab(students, "--help").returncode == 0
    after = tree(students.root)
    assert read_record(students.root).number == 2
    mine = f"{MINE}/{WRITTEN}"
    assert all(after[name] == data for name, data in second.items() if name != mine)
    assert after[mine] == before[mine]
    assert lab(students, "update", "--undo").returncode == 0
    assert tree(students.root) == before


def test_before_the_first_move_nothing_is_new(tmp_path: Path, monkeypatch) -> None:
    folder(tmp_path, monkeypatch)

    def killed(self: Path, target: Path) -> None:
        raise SystemExit

    monkeypatch.setattr(Path, "rename", killed)
    with pytest.raises(SystemExit):
        switch_over.switch({"a": b"new", "b": None}, tmp_path / ".lab" / "kept")
    monkeypatch.undo()
    folder(tmp_path, monkeypatch)
    switch_over.finish()
    assert (tmp_path / "a").read_bytes() == b"old"


def test_what_cannot_be_written_leaves_the_old(tmp_path: Path, monkeypatch) -> None:
    """The third of three files is in the way of nothing that was written before it."""
    folder(tmp_path, monkeypatch)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "full").touch()
    with pytest.raises(OSError):
        switch_over.switch({"a": b"new", "n": b"new", "c": b"new"}, tmp_path / ".lab" / "kept")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert not (tmp_path / "n").exists() and (tmp_path / "c").is_dir()
    switch_over.finish()
    assert (tmp_path / "a").read_bytes() == b"old"


def folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two old files, and nothing that was begun."""
    monkeypatch.setattr(switch_over, "ROOT", root)
    for name in ("STAGED", "READY", "DONE", "LOCK"):
        monkeypatch.setattr(switch_over, name, root / ".lab" / f"update.{name.lower()}")
    for name in ("a", "b"):
        (root / name).write_bytes(b"old")


def test_what_is_no_newer_release_of_this_course_is_refused(
    students: Students, released: Callable[..., Path], first: Files, second: Files, tmp_path: Path
) -> None:
    root = students.root
    source = newer(students, released, second)
    before = tree(root)

    def refused(*words: object) -> str:
        done = lab(students, "update", *map(str, words))
        assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1, done.stderr
        assert tree(root) == before
        return done.stderr

    assert "not both" in refused() and "not both" in refused(source, "--undo")
    assert "there is no" in refused(tmp_path / "nothing").lower()
    (tmp_path / "empty").mkdir()
    assert "is no release of the course: it holds no .release.json" in refused(tmp_path / "empty")
    (tmp_path / "torn.zip").write_bytes(zipped(source).read_bytes()[:-40])
    assert "download the release anew" in refused(tmp_path / "torn.zip")
    other = released("other", second)
    assert "ask for the release of your own course" in refused(other)
    (source / HANDOUT).write_text("somebody's notes")
    assert f"{HANDOUT} in that release is missing, or not as it was released" in refused(source)
    (source / HANDOUT).unlink()
    assert "Get the release anew" in refused(source)
    text = (source / RECORD).read_text()
    for wrong in (
        "",
        "[]",
        text[:100],
        text.replace('"labs/', '"../labs/', 1),
        text.replace('"number": 2', '"number": "2"'),
        text.replace('"labs/', '".git/', 1),
    ):
        (source / RECORD).write_text(wrong)
        assert "nobody knows which release" in refused(source)
    (source / RECORD).write_text(text)
    write_release(second, source, lambda name: True)
    lab(students, "update", str(source))
    before = tree(root)
    older = released("older", first)
    record = read_record(root)
    (older / RECORD).write_text(Record(read_record(older).files, record.course, 1).text)
    assert "this copy has release 2 already" in refused(older)
    (older / RECORD).write_text(Record(read_record(older).files, record.course, 2).text)
    assert "with other files" in refused(older)
    (root / RECORD).unlink()
    before = tree(root)
    assert "has no .release.json" in refused(source)


def test_links_and_files_in_the_way_are_the_students(
    students: Students, released: Callable[..., Path], second: Files, tmp_path: Path
) -> None:
    root = students.root
    (root / "a").write_text("a file where the release has a folder")
    notes = tmp_path / "elsewhere.md"
    notes.write_bytes((root / HANDOUT).read_bytes())
    (root / HANDOUT).unlink()
    (root / HANDOUT).symlink_to(notes)
    was = notes.read_bytes()
    done = lab(students, "update", str(newer(students, released, second)))
    assert done.returncode == 0, done.stderr
    assert (root / "a").read_text().startswith("a file") and notes.read_bytes() == was
    assert (root / HANDOUT).is_symlink()
    for name in (HANDOUT, "a/new/file.txt"):
        assert f"{name} was changed here and stays" in done.stderr


def test_a_copy_from_before_releases_had_numbers_can_be_updated(
    students: Students, released: Callable[..., Path], second: Files
) -> None:
    source = newer(students, released, second)
    path = students.root / RECORD
    path.write_text(json.dumps(read_record(students.root).files))
    assert lab(students, "update", str(source)).returncode == 0
    assert read_record(students.root).number == 2
    assert lab(students, "update", "--undo").returncode == 0
    assert read_record(students.root).number == 0


def test_the_pack_says_its_release(students: Students) -> None:
    assert lab(students, "pack", "01").returncode == 0
    with zipfile.ZipFile(students.root / "lab01.zip") as archive:
        manifest = json.loads(archive.read("manifest.json"))
    record = read_record(students.root)
    assert manifest["release"] == {"course": record.course, "number": 1}
