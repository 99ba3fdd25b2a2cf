"""What an LMS's download may hold: uploads again, two files, people with one name, strangers."""

from __future__ import annotations

import csv
import io
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
ENEMIES = """id,first_name,last_name
ada,Ada,Lovelace
bob,Bob,Ray
eve,Eve,Orr
mallory,Mallory,Mo
ann.e,Ann,Ek
anne,Anne,Oh
kim1,Kim,Lee
kim2,Kim,Lee
"""


def hand_in(klass: Class, name: str, **files: bytes) -> Path:
    """A download of the LMS in archive/; the keys stand for names, as the LMS makes them."""
    folder = klass.folder / "downloaded" / LAB.key / "archive"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / name, "w") as archive:
        for key, data in files.items():
            archive.writestr(key, data)
    return folder / name


def with_roster(made: Class, roster: str) -> Class:
    with made.own_jupyter(), (course := made.course).gradebook() as gradebook:
        for row in csv.DictReader(roster.splitlines()):
            gradebook.add_student(row.pop("id"), **row)
        course.require_generated(LAB)
    return made


@pytest.fixture(scope="module")
def klass(tmp_path_factory: pytest.TempPathFactory) -> Class:
    return with_roster(make_class(tmp_path_factory.mktemp("collecting")), ROSTER)


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


def zipped(**files: bytes) -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return whole.getvalue()


def torn(data: bytes) -> bytes:
    """The same zip with a deflate stream that no longer inflates."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{LAB.key}.ipynb", data * 100)
    start = whole.getvalue().index(b".ipynb") + len(".ipynb")
    return whole.getvalue()[:start] + b"\xff" * 20 + whole.getvalue()[start + 20 :]


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Class, str]:
    """What archive/ may hold where some want to hand in for others, or to stop everybody."""
    klass = with_roster(make_class(tmp_path_factory.mktemp("attacked")), ENEMIES)
    root = klass.folder / "downloaded" / LAB.key / "archive"

    def packed(code: str) -> bytes:
        return pack(klass.root / "at", {"bpe.py": code.encode()}, None)

    evil = packed("mallory's")
    files = {
        "ada.zip": packed("ada's"),
        "mallory/lab01.zip": zipped(**{"ada.zip": evil}),
        "Mallory Mo_5_assignsubmission_file_/ada/lab01.zip": evil,
        "mallory/bob/lab01.zip": evil,
        "bob.zip": packed("bob's"),
        "anne.zip": packed("anne's"),
        "ann.e.zip": packed("ann.e's"),
        "eve.zip": packed("eve's"),
        "someone.zip": zipped(**{"eve.zip": evil}),
        "Kim Lee_3_assignsubmission_file_/lab01.zip": packed("a Kim's"),
        "torn/lab01.zip": torn(b"{}"),
        "version/lab01.zip": (old := packed("x"))[:4] + b"\xff\xff" + old[6:],
        "damaged.zip": torn(b"{}"),
        "more.zip": zipped(**{"x_1_2_lab01.zip": torn(b"{}"), "y_1_2_lab01.zip": b"no zip"}),
    }
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return klass, klass.run("nbgrader", "zip_collect", LAB.key, "--force").stderr


@pytest.mark.parametrize("student", ["ada", "bob", "anne", "ann.e"])
def test_nobody_hands_in_for_another(
    attacked: tuple[Class, str], tmp_path: Path, student: str
) -> None:
    found = collected(attacked[0], student)[f"{LAB.key}.zip"]
    assert code(found, tmp_path / "one.zip") == f"{student}'s".encode()


def test_a_claim_by_two_or_of_two_stops_for_a_person(attacked: tuple[Class, str]) -> None:
    klass, said = attacked
    there = {path.name for path in (klass.folder / "submitted").iterdir()}
    assert not {"eve", "kim1", "kim2", "Kim-Lee"} & there
    assert "NOT COLLECTED: eve has files in eve.zip and in someone.zip" in said
    assert "could be of kim1 or kim2" in said


def test_a_zip_that_cannot_be_read_stops_nobody(attacked: tuple[Class, str]) -> None:
    klass, said = attacked
    assert collected(klass, "torn")
    assert "it is no zip that can be read" in said
