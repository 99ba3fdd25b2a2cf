"""Bad submissions of every kind are read without harm; good ones in every layout."""

from __future__ import annotations

import os
import stat
import struct
import zipfile
from pathlib import Path

import pytest

from grader.classroom.pack_contents import PackError, read_pack
from grader.course.lab_toml import find_lab
from grader.grading.submission import Submission, read
from grader.sandbox.limits import Limits

LAB = find_lab("04")
LIMITS = Limits(submission_mb=1, files=40)
CODE = "x = 1\n"


def taken(path: Path, lab=LAB) -> Submission:
    return read(path, lab, LIMITS)


def zipped(path: Path, files: dict[str, str | bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize(
    "prefix",
    ["nanovllm/batching/", "course/nanovllm/batching/", "batching/", "", "Ada Lovelace/work/"],
)
def test_layouts(tmp_path: Path, prefix: str) -> None:
    path = zipped(tmp_path / "a.zip", {f"{prefix}request.py": CODE, f"{prefix}deep/more.py": CODE})
    expected = {"request.py": CODE.encode(), "deep/more.py": CODE.encode()}
    assert taken(path).files == expected
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path / "folder")
    assert taken(tmp_path / "folder").files == expected


def test_only_python_files_of_the_package_count(tmp_path: Path) -> None:
    files = {
        "manifest.json": "{}", "timestamp.txt": "2020", "nanovllm/__init__.py": CODE,
        "nanovllm/batching/request.py": CODE, "nanovllm/batching/conftest.py": CODE,
        "nanovllm/batching/sitecustomize.py": CODE, "nanovllm/batching/a.pth": "import os",
        "nanovllm/batching/lib.so": b"\x7fELF", "nanovllm/batching/x.pyc": b"\0",
        "nanovllm/batching/not a name.py": CODE, "nanovllm/model/loader.py": CODE,
        "__MACOSX/nanovllm/batching/._request.py": b"\0",
    }  # fmt: skip
    found = taken(zipped(tmp_path / "a.zip", files))
    assert list(found.files) == ["request.py"]
    assert any("conftest.py" in note for note in found.notes)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "no Python file of lab04"),
        ({"readme.txt": "hello"}, "no Python file of lab04"),
        ({"nanovllm/tokenization/bpe.py": CODE}, "it holds lab01"),
        ({"bpe.py": CODE, "detokenizer.py": CODE}, "those of lab01"),
        ({"batching/request.py": b"#" * (2 << 20)}, "more than 1 MB"),
        ({f"batching/m{i}.py": CODE for i in range(60)}, "40 files"),
        ({"batching/request.py": bytes(900 << 20)}, "more than 1 MB"),  # a zip bomb
    ],
    ids=["empty", "nothing", "other-lab", "other-lab-bare", "large", "many", "bomb"],
)
def test_nothing_to_grade(tmp_path: Path, files: dict, says: str) -> None:
    found = taken(zipped(tmp_path / "a.zip", files))
    assert found.files == {}
    assert says in found.problem


def test_overlapping_bomb_is_cut_by_the_total(tmp_path: Path) -> None:
    files = {f"batching/m{i}.py": b"#" * (300 << 10) for i in range(8)}
    assert "more than 1 MB" in taken(zipped(tmp_path / "a.zip", files)).problem


def test_paths_that_leave_the_zip(tmp_path: Path) -> None:
    names = ["../../batching/evil.py", "/etc/batching/evil.py", "batching/../../evil.py"]
    path = zipped(tmp_path / "a.zip", dict.fromkeys([*names, "batching/request.py"], CODE))
    found = taken(path)
    assert list(found.files) == ["request.py"]
    assert len(found.notes) == 3
    assert not list(tmp_path.rglob("evil.py"))


def test_links(tmp_path: Path) -> None:
    secret = tmp_path / "secret.py"
    secret.write_text("SECRET = 1\n")
    folder = tmp_path / "handed_in"
    package = folder / "batching"
    package.mkdir(parents=True)
    (package / "request.py").symlink_to(secret)
    (package / "loop").symlink_to(package)
    (package / "budget.py").write_text(CODE)
    os.mkfifo(package / "pipe.py")
    (folder / "nanovllm").symlink_to("/etc")
    found = taken(folder)
    assert list(found.files) == ["budget.py"]
    assert sum("link" in note for note in found.notes) == 4
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as file:
        info = zipfile.ZipInfo("batching/request.py")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        file.writestr(info, str(secret))
        file.writestr("batching/budget.py", CODE)
    assert list(taken(archive).files) == ["budget.py"]


@pytest.mark.parametrize(
    "content",
    [b"", b"PK", b"PK\x05\x06" + bytes(18), os.urandom(5000), b"PK\x03\x04" + os.urandom(200)],
    ids=["empty", "two-bytes", "empty-zip", "noise", "torn"],
)
def test_what_is_no_zip(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(content)
    found = taken(path)
    assert found.files == {} and found.problem


def test_damaged_and_locked_zips(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", {"batching/request.py": CODE * 1000})
    whole = path.read_bytes()
    path.write_bytes(whole[:60] + b"\xff\xff\xff" + whole[63:])  # the data itself
    assert taken(path).problem
    flags = struct.unpack("<H", whole[6:8])[0] | 1
    at = whole.index(b"PK\x01\x02") + 8
    path.write_bytes(whole[:6] + struct.pack("<H", flags) + whole[8:at]
                     + struct.pack("<H", flags) + whole[at + 2 :])  # fmt: skip
    assert "cannot be read" in taken(path).problem


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_no_damage_escapes(tmp_path: Path, method: int) -> None:
    files = {"batching/request.py": CODE * 300, "batching/budget.py": bytes(range(256)) * 2}
    whole = zipped(tmp_path / "whole.zip", files, method).read_bytes()
    path = tmp_path / "a.zip"
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        assert isinstance(taken(path), Submission)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_what_unpacks_at_once_into_all_memory_is_left_out(tmp_path: Path, method: int) -> None:
    path = zipped(tmp_path / "a.zip", {"batching/request.py": CODE}, method)
    found = taken(path)
    assert not found.files
    assert "is packed by another method than deflate" in " ".join(found.notes)
    notebook = tmp_path / "pack.zip"
    with zipfile.ZipFile(notebook, "w", method) as archive:
        archive.writestr("lab04.ipynb", bytes(1000))
    with pytest.raises(PackError, match="a method other than deflate"):
        read_pack(notebook, "lab04")


def test_an_entry_without_a_name(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", {"x": CODE, "batching/request.py": CODE})
    whole = bytearray(path.read_bytes())
    central = whole.index(b"PK\x01\x02")
    whole[central + 28 : central + 32] = b"\0\0\1\0"  # no name, and one byte of extra field
    path.write_bytes(whole)
    assert list(taken(path).files) == ["request.py"]


def test_a_directory_of_entries_without_files_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = struct.pack("<4s4B4HL2L5H2L", b"PK\x01\x02", 20, 0, 20, *[0] * 9, 1, *[0] * 5) + b"a"
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 65535, 65535, len(entry) * 90_000, 0, 0)
    path = tmp_path / "a.zip"
    path.write_bytes(entry * 90_000 + end)
    monkeypatch.setattr(zipfile, "ZipFile", None)
    assert "more than 20000 files" in taken(path).problem


def test_names_that_no_system_takes_or_that_take_long(tmp_path: Path) -> None:
    long = {"batching/" + "a" * 300 + ".py": CODE, "batching/" * 7000 + "x.py": CODE}
    clash = {"batching/request.py": CODE, "batching/request.py/x.py": CODE}
    found = taken(zipped(tmp_path / "a.zip", long | clash))
    assert list(found.files) == ["request.py"]
    assert len(found.notes) == 3
    assert all(len(note) < 200 for note in found.notes)


def test_many_odd_files_make_few_notes(tmp_path: Path) -> None:
    odd = {f"batching/{i} is no name.py": "" for i in range(500)}
    found = taken(zipped(tmp_path / "a.zip", {**odd, "batching/request.py": CODE}))
    assert list(found.files) == ["request.py"]
    assert len(found.notes) == 11 and found.notes[-1] == "490 more were left out."


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_of_two_entries_with_one_name_the_last_counts(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", {"batching/request.py": "x = 1\n"})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("batching/request.py", "x = 2\n")
        archive.writestr("batching//./request.py", "x = 3\n")
        archive.writestr("again/batching/request.py", "x = 4\n")
    assert taken(path).files == {"request.py": b"x = 3\n"}


def test_missing_and_odd_places(tmp_path: Path) -> None:
    assert "neither a zip nor a folder" in taken(tmp_path / "nowhere.zip").problem
    (tmp_path / "batching" / "request.py").mkdir(parents=True)
    (tmp_path / "batching" / "budget.py").write_bytes(b"\x00\xff\xfe junk")
    assert list(taken(tmp_path).files) == ["budget.py"]


def test_names_are_shown_without_their_tricks(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", {"batching/\x1b[2J\u202e.py": CODE, "batching/x.py": CODE})
    found = taken(path)
    assert list(found.files) == ["x.py"]
    assert "\x1b" not in found.notes[0] and "\u202e" not in found.notes[0]
