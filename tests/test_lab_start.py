"""`lab start`: stubs are copied, the student's files are never overwritten."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.lab_course import Course, make_course


@pytest.fixture
def course(tmp_path: Path) -> Course:
    return make_course(tmp_path)


def test_start_copies_the_stubs_and_names_the_first_file(course: Course) -> None:
    done = course.lab("start", "1")
    assert done.returncode == 0
    assert "Open   nanovllm/tokenization/sums.py" in done.stdout
    stubs = course.root / "labs" / "lab01" / "stubs"
    for stub in stubs.glob("*.py"):
        assert (course.mine / stub.name).read_bytes() == stub.read_bytes()
    assert course.records["labs"]["lab01"]["started"]


def test_a_second_start_adds_only_what_is_missing(course: Course) -> None:
    course.lab("start", "1")
    edited = course.mine / "sums.py"
    edited.write_text("# mine\n")
    assert "nothing was changed" in course.lab("start", "lab01").stdout
    (course.mine / "scale.py").unlink()
    done = course.lab("start", "01")
    assert "missing" in done.stdout
    assert "scale.py" in done.stdout
    assert edited.read_text() == "# mine\n"
    assert (course.mine / "scale.py").is_file()


def test_files_that_were_there_before_the_start_are_kept(course: Course) -> None:
    course.mine.mkdir()
    (course.mine / "sums.py").write_text("# from last year\n")
    course.lab("start", "1")
    assert (course.mine / "sums.py").read_text() == "# from last year\n"


def test_an_edited_stub_is_noticed_and_adopted(course: Course) -> None:
    course.lab("start", "1")
    stub = course.root / "labs" / "lab01" / "stubs" / "sums.py"
    handed_out = stub.read_text()
    stub.write_text(handed_out.replace("STEP = 1", "STEP = 7"))
    assert "labs/lab01/stubs/sums.py was edited" in course.lab().stdout
    assert "stubs themselves are changed" in course.refused("reset", "1", "--yes")
    done = course.lab("start", "1", "--adopt", answer="y\n")
    assert done.returncode == 0
    assert "STEP = 7" in (course.mine / "sums.py").read_text()
    assert stub.read_text() == handed_out
    assert "was edited" not in course.lab().stdout


def test_adopting_over_an_own_edit_keeps_a_backup(course: Course) -> None:
    course.lab("start", "1")
    stub = course.root / "labs" / "lab01" / "stubs" / "sums.py"
    stub.write_text("# in the stub\n")
    (course.mine / "sums.py").write_text("# in my file\n")
    done = course.lab("start", "1", "--adopt", answer="y\n")
    assert "You have edited both" in done.stdout
    assert (course.mine / "sums.py").read_text() == "# in the stub\n"
    backup = next((course.root / ".lab" / "backups").rglob("sums.py"))
    assert backup.read_text() == "# in my file\n"
    assert "git checkout labs/lab01/stubs/sums.py" in done.stdout


def test_declining_to_adopt_changes_nothing(course: Course) -> None:
    course.lab("start", "1")
    stub = course.root / "labs" / "lab01" / "stubs" / "sums.py"
    stub.write_text("# in the stub\n")
    before = (course.mine / "sums.py").read_bytes()
    course.lab("start", "1", "--adopt", answer="n\n")
    assert (course.mine / "sums.py").read_bytes() == before
    assert stub.read_text() == "# in the stub\n"


def test_another_folder_can_be_the_students_package(course: Course, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    done = course.lab("start", "1", NANOVLLM_MINE=str(elsewhere))
    assert done.returncode == 0
    assert (elsewhere / "tokenization" / "sums.py").is_file()
    assert not course.mine.exists()


def test_start_refuses_with_one_sentence(course: Course) -> None:
    assert "no lab '9'" in course.refused("start", "9")
    assert "no lab 'paging'" in course.refused("start", "paging").replace('"', "'")
    (course.root / "a-file").write_text("")
    said = course.refused("start", "1", NANOVLLM_MINE=str(course.root / "a-file"))
    assert "cannot be started" in said
    shutil.rmtree(course.root / "labs" / "lab01" / "stubs")
    assert "git checkout labs/lab01" in course.refused("start", "1")


def test_the_checks_of_a_lab_not_started_can_be_listed(course: Course) -> None:
    listed = "import pytest; print(int(pytest.main(['labs/lab01', '--collect-only', '-q', *{}])))"
    said = course.python(listed.format([])).splitlines()
    assert said[0] == "labs/lab01/test_1_add.py::test_add"
    assert said[-1] == "0" and said[-2].startswith("4 tests collected")
    assert "2/4 tests collected" in course.python(listed.format(["-k", "task1"]))
    assert not course.mine.exists()
    (course.root / "labs" / "lab01" / "checks.json").write_text("{")
    assert "git checkout labs/lab01/checks.json" in course.python(listed.format([]))
