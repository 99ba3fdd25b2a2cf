"""Bad submissions of every kind are read without harm; good ones in every layout."""

from __future__ import annotations

import os
import stat
import struct
import zipfile
from pathlib import Path

import pytest

from grader.catalog import find_lab
from grader.grading.limits import Limits
from grader.grading.submission import Submission, read

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
