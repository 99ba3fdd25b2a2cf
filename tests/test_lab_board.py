"""The board shows what the files as they are now have earned, quickly and at any width."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from tests.lab_course import ALL_PASS, Course, make_course


@pytest.fixture
def course(tmp_path: Path) -> Course:
    return make_course(tmp_path, started="1")


def row(course: Course, title: str, **extra: str) -> str:
    return row_in(course.lab(**extra).stdout, title)


def row_in(shown: str, title: str) -> str:
    return next(line for line in shown.splitlines() if title in line)


def next_line(course: Course) -> str:
    return course.lab().stdout.strip().splitlines()[-1]


def test_the_next_step_leads_through_the_course(tmp_path: Path) -> None:
    course = make_course(tmp_path)
    assert next_line(course) == "next: lab01 Adding up: lab start 01"
    course.lab("start", "1")
    assert next_line(course) == (
        "next: lab01 task 1: Add → nanovllm/tokenization/sums.py; lab check 01 --task 1"
    )
    course.record(test_add="passed", test_negative="passed", test_push="todo")
    assert "task 2: Counter" in next_line(course)
    course.record(**ALL_PASS)
    assert "lab check 01 --mine" in next_line(course)
    course.record("mine", **ALL_PASS)
    assert "lab demo 01, lab pack 01; then lab02" in next_line(course)
    assert next_line(course).endswith("lab02 Adding more: lab start 02")


def test_a_lab_that_is_begun_comes_before_earlier_ones_that_are_not(tmp_path: Path) -> None:
    course = make_course(tmp_path, started="2")
    assert "next: lab02 task 1: Triple" in next_line(course)
    course.record(key="lab02", test_triple="passed")
    # not its chain: that would stand on a lab of which there is no code of the student's own
    assert next_line(course).endswith("lab01 Adding up: lab start 01")
    course.lab("start", "1")
    course.record(**ALL_PASS)
    course.record("mine", **ALL_PASS)
    assert next_line(course) == "next: lab02 on your own code of all labs: lab check 02 --mine"


def test_a_lab_with_points_whose_folder_is_gone_is_to_be_started(course: Course) -> None:
    course.record(**ALL_PASS)
    course.record("mine", **ALL_PASS)
    course.mine.rename(course.root / "away")
    assert next_line(course) == "next: lab01 Adding up: lab start 01"


def test_work_on_a_later_task_does_not_ask_for_the_earlier_ones_again(course: Course) -> None:
    course.record(test_add="passed", test_negative="passed")
    (course.mine / "scale.py").write_text("# more\n")
    course.record(test_push="failed")
    assert "task 2: Counter" in next_line(course)


def test_points_stand_in_two_columns(course: Course) -> None:
    course.record(**ALL_PASS | {"test_double": "failed"})
    course.record("mine", **ALL_PASS)
    shown = course.lab().stdout
    assert row_in(shown, "Adding up").split()[3:5] == ["22/30", "30/30"]
    assert row_in(shown, "2 Counter").split()[2:4] == ["12/20", "20/20"]
    assert "1 of 2 pass" in row_in(shown, "2 Counter")


def test_an_edited_file_makes_its_results_stale(course: Course) -> None:
    course.record(**ALL_PASS)
    original = (course.mine / "scale.py").read_text()
    (course.mine / "scale.py").write_text(original + "# more\n")
    shown = course.lab().stdout
    assert "~30/30" in row_in(shown, "Adding up")
    assert "changed since" in row_in(shown, "1 Add ")
    assert "next: lab01 has changed since some of its checks ran: lab check 01" in shown
    (course.mine / "scale.py").write_text(original)
    assert "~" not in row(course, "Adding up")


def test_only_results_of_the_whole_chain_depend_on_other_labs(course: Course) -> None:
    course.lab("start", "2")
    course.record(key="lab02", test_triple="passed")
    course.record("mine", key="lab02", test_triple="passed")
    (course.mine / "sums.py").write_text("# other\n")
    assert row(course, "1 Triple").split()[2:4] == ["10/10", "~10/10"]


@pytest.mark.parametrize("deed", ["edited", "missing"])
def test_changed_checks_are_noticed_and_named(course: Course, deed: str) -> None:
    course.record(**ALL_PASS)
    checks = course.root / "labs" / "lab01" / "test_1_add.py"
    if deed == "edited":
        checks.write_text(checks.read_text().replace("5", "6"))
    else:
        checks.unlink()
    shown = course.lab().stdout
    assert f"lab01/test_1_add.py {'was edited' if deed == 'edited' else 'is missing'}" in shown
    assert "git checkout" in shown
    assert "checks edited" in row_in(shown, "1 Add ")
    assert "changed since" in row_in(shown, "2 Counter")


def test_edited_checks_open_no_reference(course: Course) -> None:
    checks = course.root / "labs" / "lab01" / "test_1_add.py"
    checks.write_text("def test_add(): pass\n")
    course.record(**ALL_PASS)
    assert course.records["labs"]["lab01"]["unlocked"] == [2]


def test_a_deleted_lab_is_named(course: Course) -> None:
    course.mine.rename(course.root / "away")
    assert "was started, but nanovllm/tokenization/ is gone" in course.lab().stdout.replace(
        "\n", " "
    )


@pytest.mark.parametrize("text", ["{", "[]", '{"checks": {"a": {}}, "files": {}}'])
def test_a_damaged_list_of_checks_is_named(course: Course, text: str) -> None:
    (course.root / "labs" / "lab01" / "checks.json").write_text(text)
    done = course.lab()
    assert done.returncode == 0, done.stderr
    assert "git checkout labs/lab01/checks.json" in done.stdout
    assert "git checkout" in course.refused("list", "1")
    assert "git checkout" in course.refused("hint", "1", "1", "--yes")


@pytest.mark.parametrize("width", [60, 80, 200])
def test_every_width_and_a_plain_terminal(course: Course, width: int) -> None:
    course.lab("hint", "1", "1", "--yes")
    shown = course.lab(COLUMNS=str(width)).stdout
    table = shown.splitlines()[:6]
    assert max(map(len, table)) <= width
    plain = course.lab(COLUMNS=str(width), PYTHONIOENCODING="ascii", PYTHONUTF8="0", apart=True)
    assert plain.returncode == 0
    assert plain.stderr == ""
    assert plain.stdout.isascii()


@pytest.mark.parametrize("width", ["0", "-1"])
def test_a_width_of_nothing_is_none_at_all(course: Course, width: str) -> None:
    for words in ((), ("list", "1")):
        assert course.lab(*words, COLUMNS=width).stdout == course.lab(*words, COLUMNS="80").stdout


def test_the_board_comes_within_a_second_and_without_torch(course: Course) -> None:
    course.record(**ALL_PASS)
    took = []  # processor time, which other work on the machine leaves as it is
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        course.lab(apart=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    assert min(took) < 1.0
    heavy = course.python(
        "import sys, grader.student.lab_command\nfrom grader.student import board, progress\n"
        "print([m for m in ('torch', 'transformers', 'pytest', 'watchfiles')"
        " if m in sys.modules])"
    )
    assert heavy.strip() == "[]"


def test_looking_changes_nothing(tmp_path: Path) -> None:
    course = make_course(tmp_path)
    course.lab()
    assert not (course.root / ".lab").exists()
    course.lab("start", "1")
    before = course.state_file.read_bytes()
    (course.mine / "sums.py").write_text("# saved\n")
    course.lab()
    course.lab("time")
    assert course.state_file.read_bytes() == before


def test_list_names_every_check(course: Course) -> None:
    course.record(test_add="passed", test_negative="failed")
    shown = course.lab("list", "1").stdout
    assert "✓   test_add" in shown
    assert "✗   test_negative" in shown
    assert "Negative [numbers]" in shown
