"""What an LMS's download may hold: uploads again, two files, people with one name, strangers."""

from __future__ import annotations

import csv
import os
import zipfile
from pathlib import Path

import pytest

from tests.nbgrader_class import LAB, Class, make_class, pack

pytestmark = pytest.mark.xdist_group("collecting")
ROSTER = """id,first_name,last_name,email,lms_user_id
ada,Ada,Lovelace,ada@example.edu,1001
kim1,Kim,Lee,k1@example.edu,
kim2,Kim,Lee,k2@example.edu,
mia,Mia,van der Berg,m@example.edu,
"""


def hand_in(klass: Class, name: str, **files: bytes) -> Path:
    """A download of the LMS in archive/; the keys stand for names, as the LMS makes them."""
    folder = klass.folder / "downloaded" / LAB.key / "archive"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / name, "w") as archive:
        for key, data in files.items():
            archive.writestr(key, data)
    return folder / name


@pytest.fixture(scope="module")
def klass(tmp_path_factory: pytest.TempPathFactory) -> Class:
    made = make_class(tmp_path_factory.mktemp("collecting"))
    with made.own_jupyter(), (course := made.course).gradebook() as gradebook:
        for row in csv.DictReader(ROSTER.splitlines()):
            gradebook.add_student(row.pop("id"), **row)
        course.require_generated(LAB)
    return made


@pytest.fixture(scope="module")
def said(klass: Class) -> str:
    def packed(code: str, notebook: bytes | None = None) -> bytes:
        return pack(klass.root / "at", {"bpe.py": code.encode()}, notebook)

    moodle = "assignsubmission_file_"
    old = hand_in(klass, "submissions.zip", **{f"Mia van der Berg_5_{moodle}/lab01.zip": b"old"})
    os.utime(old, (1, 1))
    new = {
        "lovelaceada_1001_9_lab01.zip": packed("first", b"{}"),
        "lovelaceada_1001_11_lab01-1.zip": packed("second", b"{}"),
        "lovelaceada_1001_12_lab01.ipynb": b'{"its": "own"}',
        f"Kim Lee_3_{moodle}/lab01.zip": packed("one Kim"),
        f"Kim Lee_4_{moodle}/lab01.zip": packed("the other"),
        f"Mia van der Berg_5_{moodle}/lab01.ipynb": b'{"its": "own"}',
        f"Mia van der Berg_5_{moodle}/lab01.zip": packed("new", b"{}"),
        "doejo_4242_8_lab01.zip": packed("stranger"),
        "---.zip": packed("no name"),
    }
    hand_in(klass, "submissions (1).zip", **new)
    return klass.run("nbgrader", "zip_collect", LAB.key, "--force").stderr


def collected(klass: Class, student: str) -> dict[str, bytes]:
    folder = klass.folder / "submitted" / student / LAB.key
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def code(data: bytes, at: Path) -> bytes:
    at.write_bytes(data)
    with zipfile.ZipFile(at) as archive:
        return archive.read(f"nanovllm/{LAB.package}/bpe.py")


@pytest.mark.parametrize(("student", "wanted"), [("ada", b"second"), ("mia", b"new")])
def test_the_newest_upload_counts_and_a_notebook_beside_the_pack(
    klass: Class, said: str, tmp_path: Path, student: str, wanted: bytes
) -> None:
    found = collected(klass, student)
    assert set(found) == {f"{LAB.key}.ipynb", f"{LAB.key}.zip"}
    assert code(found[f"{LAB.key}.zip"], tmp_path / "one.zip") == wanted
    assert found[f"{LAB.key}.ipynb"] == b'{"its": "own"}'


def test_work_of_people_with_one_name_is_given_to_nobody_and_said(klass: Class, said: str) -> None:
    there = {path.name for path in (klass.folder / "submitted").iterdir()}
    assert not {"kim1", "kim2"} & there
    assert "NOT COLLECTED: Kim Lee_3_" in said
    assert "as ada.zip" in said


def test_who_is_not_in_the_roster_is_named(klass: Class, said: str) -> None:
    assert "not in the roster, graded by this name: ---, doejo" in said
    assert collected(klass, "doejo")
