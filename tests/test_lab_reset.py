"""`lab reset`: one task's definitions or a whole lab go back to stubs, with a way to undo it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.lab_course import Course, make_course

NOTE = "\n\n# my own remark: Größe\n\n\ndef helper():\n    return 3\n"


@pytest.fixture
def course(tmp_path: Path) -> Course:
    made = make_course(tmp_path, started="1")
    made.solve("sums.py", "scale.py")
    sums = made.mine / "sums.py"
    sums.write_text(sums.read_text().replace("STEP = 1", "STEP = 5  # tuned") + NOTE)
    return made


def undo(course: Course, said: str) -> None:
    """Run the command that the reset printed."""
    command = next(line.strip() for line in said.splitlines() if line.strip().startswith("cp "))
    subprocess.run(command, shell=True, cwd=course.root, check=True)


def test_a_task_reset_changes_only_that_tasks_definitions(course: Course) -> None:
    sums, scale = course.mine / "sums.py", course.mine / "scale.py"
    before = sums.read_text(), scale.read_text()
    done = course.lab("reset", "1", "--task", "2", answer="y\n")
    assert done.returncode == 0, done.stderr
    solved = "        self.total = add(self.total, n)\n        return self.total\n"
    wanted = '        raise NotImplementedError("lab01 task 2: push")\n'
    assert sums.read_text() == before[0].replace(solved, wanted)
    assert "return a + b" in sums.read_text()
    assert "raise NotImplementedError" in scale.read_text()
    undo(course, done.stdout)
    assert (sums.read_text(), scale.read_text()) == before


def test_line_endings_and_marks_of_the_file_are_kept(course: Course) -> None:
    sums = course.mine / "sums.py"
    text = "\ufeff" + sums.read_text().replace("\n", "\r\n")
    sums.write_bytes(text.encode())
    course.lab("reset", "1", "--task", "1", "--yes")
    after = sums.read_bytes().decode()
    assert after.startswith("\ufeff")
    assert "\n" not in after.replace("\r\n", "")
    assert "STEP = 5  # tuned" in after
    assert 'raise NotImplementedError("lab01 task 1: add")' in after


def test_a_deleted_definition_comes_back(course: Course) -> None:
    sums = course.mine / "sums.py"
    sums.write_text('class Counter:\n    """Mine."""\n\n    total = 0\n')
    course.lab("reset", "1", "--task", "2", "--yes")
    course.lab("reset", "1", "--task", "1", "--yes")
    names = course.python(
        "import ast; tree = ast.parse(open('nanovllm/tokenization/sums.py').read());"
        "print([n.name for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef))])"
    )
    assert sorted(eval(names)) == ["Counter", "add", "push"]
    assert "total = 0" in sums.read_text()


def test_a_deleted_file_comes_back(course: Course) -> None:
    (course.mine / "scale.py").unlink()
    course.lab("reset", "1", "--task", "2", "--yes")
    stub = course.root / "labs" / "lab01" / "stubs" / "scale.py"
    assert (course.mine / "scale.py").read_bytes() == stub.read_bytes()


def test_of_what_was_deleted_there_is_nothing_to_get_back(course: Course) -> None:
    course.lab("reset", "1", "--yes")
    (course.mine / "scale.py").unlink()
    done = course.lab("reset", "1", "--yes")
    assert "is reset." in done.stdout and "cp -R" not in done.stdout
    assert (course.mine / "scale.py").exists()


def test_a_file_with_a_syntax_error_is_left_as_it_is(course: Course) -> None:
    sums = course.mine / "sums.py"
    sums.write_text("def add(:\n")
    before = (course.mine / "scale.py").read_bytes()
    said = course.refused("reset", "1", "--task", "2", "--yes")
    assert "line 1 is not valid Python" in said
    assert "lab reset 01" in said
    assert sums.read_text() == "def add(:\n"
    assert (course.mine / "scale.py").read_bytes() == before


def test_a_lab_reset_keeps_added_files_and_can_be_undone(course: Course) -> None:
    (course.mine / "notes.py").write_text("# mine\n")
    before = (course.mine / "sums.py").read_text()
    done = course.lab("reset", "1", answer="y\n")
    stub = course.root / "labs" / "lab01" / "stubs" / "sums.py"
    assert (course.mine / "sums.py").read_bytes() == stub.read_bytes()
    assert (course.mine / "notes.py").read_text() == "# mine\n"
    undo(course, done.stdout)
    assert (course.mine / "sums.py").read_text() == before


def test_the_way_back_is_one_command_wherever_the_course_lies(tmp_path: Path) -> None:
    course = make_course(tmp_path / "my course (1)", started="1")
    course.solve("sums.py")
    before = (course.mine / "sums.py").read_text()
    done = course.lab("reset", "1", "--yes", cwd=tmp_path)
    assert (course.mine / "sums.py").read_text() != before
    undo(course, done.stdout)
    assert (course.mine / "sums.py").read_text() == before


def test_no_is_the_default_and_silence_is_no_answer(course: Course) -> None:
    before = (course.mine / "sums.py").read_text()
    assert "Nothing was reset" in course.lab("reset", "1", answer="\n").stdout
    silent = course.lab("reset", "1")
    assert silent.returncode == 2
    assert "nothing was done" in silent.stderr
    assert (course.mine / "sums.py").read_text() == before
    assert not (course.root / ".lab" / "backups").exists()


def test_without_a_backup_nothing_is_reset(course: Course) -> None:
    before = (course.mine / "sums.py").read_text()
    (course.root / ".lab" / "backups").write_text("in the way")
    assert "othing was changed" in course.refused("reset", "1", "--yes")
    assert (course.mine / "sums.py").read_text() == before


def test_refusals(course: Course) -> None:
    assert "lab02 is not started" in course.refused("reset", "2", "--yes")
    assert "no task 7" in course.refused("reset", "1", "--task", "7", "--yes")
    course.lab("reset", "1", "--yes")
    assert "nothing to reset" in course.lab("reset", "1", "--yes").stdout
