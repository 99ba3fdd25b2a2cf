"""The remaining commands: check, hint, diff, demo, time, and what all of them refuse."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grader.course.lab_toml import Lab, Task
from grader.student.progress import LabProgress, Tally, TaskProgress, Trust, next_in_chain
from grader.student_files import work_time
from grader.student_files.work_time import Event, active_seconds
from tests.lab_course import ALL_PASS, Course, make_course


@pytest.fixture
def course(tmp_path: Path) -> Course:
    return make_course(tmp_path, started="1")


# check ------------------------------------------------------------------------------------------


def test_check_runs_the_lab_and_says_what_is_next(course: Course) -> None:
    course.solve("sums.py")
    done = course.lab("check", "1")
    assert done.returncode == 1
    assert "task 2: Counter" in done.stdout.splitlines()[-1]
    course.solve("scale.py")
    done = course.lab("check")
    assert done.returncode == 0
    assert "30/30" in done.stdout
    assert "lab check 01 --mine" in done.stdout.splitlines()[-1]
    results = course.records["labs"]["lab01"]["results"]["isolated"]
    assert {one["status"] for one in results.values()} == {"passed"}
    assert course.records["labs"]["lab01"]["unlocked"] == [1, 2]
    assert "~" not in course.lab().stdout


def test_stress_repeats_the_random_histories_until_one_fails(course: Course) -> None:
    course.solve("sums.py", "scale.py")
    assert "no check with random histories" in course.refused("stress", "1")
    checks = course.root / "labs" / "lab01" / "test_1_add.py"
    before = checks.read_text()
    check = """
@pytest.mark.check(task=1, points=0, title="Any numbers", stress=True)
def test_any(rng):
    numbers = [int(n) for n in rng.integers(0, {most}, 9)]
    expect(add(*numbers[:2]) % {most}, sum(numbers[:2]), given={{"numbers": numbers}})
"""
    checks.write_text(before + check.format(most=3))
    failed = course.lab("stress", "1", "--seeds", "40")
    assert failed.returncode == 1
    assert "Any numbers" in failed.stdout and "numbers: [" in failed.stdout
    assert "test_any --seed " in failed.stdout
    ends = check.format(most=3).replace("numbers = [", "import os; os._exit(7); numbers = [")
    checks.write_text(before + ends)
    ended = course.lab("stress", "1", "--seeds", "4")
    assert ended.returncode == 2 and "The code ended its process (7)" in ended.stderr
    checks.write_text(before + check.format(most=10**6).replace(f"% {10**6}", "+ 0"))
    passed = course.lab("stress", "1", "--seeds", "3")
    assert passed.returncode == 0 and "3 seeds, and none fails." in passed.stdout


def test_one_task_and_the_whole_chain(course: Course) -> None:
    course.solve("sums.py")
    assert course.lab("check", "1", "--task", "1").returncode == 0
    assert len(course.records["labs"]["lab01"]["results"]["isolated"]) == 2
    course.lab("check", "1", "--task", "1", "--mine")
    assert len(course.records["labs"]["lab01"]["results"]["mine"]) == 2


def test_after_the_whole_chain_the_next_step_is_about_that_run(course: Course) -> None:
    course.record(**dict.fromkeys(("test_add", "test_negative", "test_push"), "passed"))
    course.solve("sums.py")
    done = course.lab("check", "1", "--mine")
    assert done.returncode == 1
    last = done.stdout.splitlines()[-1]
    assert last.startswith("next: lab01 task 2 has ") and last.endswith(
        "points on your own code of all labs: lab check 01 --task 2 --mine"
    )


def test_the_whole_chain_without_a_lower_lab_leads_to_it() -> None:
    tasks = (Task(1, "Triple", 10, 20, ("more:triple",), runs_on=("lab01",)),)
    low = Lab(1, "Adding up", "tokenization", "sums.py", tasks)
    high = Lab(2, "Adding more", "model", "more.py", tasks)
    full, none = Tally(10, 10, Trust.FRESH), Tally(0, 10, Trust.FRESH)

    def one(lab: Lab, isolated: Tally) -> LabProgress:
        task = TaskProgress(tasks[0], isolated, none, 0, 0, 0, 0.0, 0.0)
        return LabProgress(lab, True, (task,), ())

    assert next_in_chain(high, [one(low, none), one(high, full)]).startswith(
        "lab02 on your own code of all labs runs on lab01, Adding up: lab "
    )
    assert next_in_chain(high, [one(low, full), one(high, full)]).startswith(
        "lab02 task 1 has 0 of 10 points"
    )


def test_a_file_saved_during_the_run_is_not_taken_as_checked(course: Course) -> None:
    course.solve("sums.py", "scale.py")
    sums = course.mine / "sums.py"
    sums.write_text(sums.read_text() + "open(__file__, 'a').write('# saved\\n')\n")
    assert course.lab("check", "1").returncode == 0
    assert "changed since" in course.lab().stdout


def test_what_cannot_be_written_is_said_by_pytest_too(course: Course) -> None:
    (course.root / "file").write_text("")
    nowhere = str(course.root / "file" / "folder")
    done = course.lab("check", "1", "--task", "1", NANOVLLM_STATE=nowhere)
    assert done.returncode == 1
    assert "this is not recorded on the board" in done.stdout
    assert "not started" not in done.stdout
    command = "import sys, pytest; sys.exit(pytest.main(['labs/lab01']))"
    said = course.python(
        f"import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', "
        f"{command!r}], capture_output=True, text=True).stderr)",
        NANOVLLM_MINE=nowhere,
    )
    assert "lab01 cannot be started" in said
    assert "Traceback" not in said


def test_check_of_a_lab_not_started_starts_it(course: Course) -> None:
    done = course.lab("check", "2")
    assert "lab02 Adding more is started" in done.stdout
    assert (course.root / "nanovllm" / "model" / "more.py").is_file()


def test_check_refuses(tmp_path: Path) -> None:
    course = make_course(tmp_path)
    assert "`lab start 01` starts the first" in course.refused("check")
    assert "no task 5" in course.refused("check", "1", "--task", "5")
    assert not course.mine.exists()
    (course.root / "labs" / "lab01" / "test_1_add.py").unlink()
    assert "git checkout labs/lab01" in course.refused("check", "1", "--task", "1")


# hint -------------------------------------------------------------------------------------------


def test_hints_come_one_at_a_time_with_their_cost_first(course: Course) -> None:
    for number, (cost, text) in enumerate([("0.6", "weak"), ("1.2", "stronger"), ("1.8", "code")]):
        done = course.lab("hint", "1", "1", answer="y\n")
        assert f"Hint {number + 1} of 3 costs {cost} of 6 points" in done.stdout
        assert done.stdout.index("costs") < done.stdout.rindex(text)
    assert "These are all its hints" in course.lab("hint", "1", "test_add").stdout
    course.record(**ALL_PASS)
    shown = course.lab().stdout
    assert "10/10" in shown
    assert "6.4 (3)" in shown


def test_a_declined_hint_is_not_shown_and_not_counted(course: Course) -> None:
    done = course.lab("hint", "1", "test_push", answer="n\n")
    assert "weak" not in done.stdout
    assert "hints" not in course.lab().stdout


def test_a_failed_check_comes_before_one_not_run(course: Course) -> None:
    course.record(test_add="passed", test_negative="failed")
    assert "test_negative" in course.lab("hint", "1", "1", "--yes").stdout
    course.record(**ALL_PASS)
    assert "every check of task 1 passes" in course.refused("hint", "1", "1").lower()


def test_hint_refuses_an_unknown_check(course: Course) -> None:
    assert "no check 'test_ad'" not in course.lab("hint", "1", "test_ad", "--yes").stderr
    assert "no check 'nonsense'" in course.refused("hint", "1", "nonsense")
    assert "several checks" in course.refused("hint", "1", "test_")
    assert "no task 9" in course.refused("hint", "1", "9")


# diff and demo ----------------------------------------------------------------------------------


def test_the_reference_opens_task_by_task(course: Course) -> None:
    assert "opens its reference" in course.refused("diff", "1")
    course.solve("sums.py", "scale.py")
    scale = course.mine / "scale.py"
    scale.write_text(scale.read_text().replace("2 * n", "n + n"))
    course.record(test_add="passed", test_negative="passed")
    assert "opens once all its checks pass" in course.refused("diff", "1", "--task", "2")
    done = course.lab("diff", "1")
    assert "not open yet: task 2" in done.stdout
    assert "return 2 * n" not in done.stdout
    course.record(**ALL_PASS)
    done = course.lab("diff", "1", "--task", "2")
    assert "-    return n + n\n+    return 2 * n\n" in done.stdout
    assert "Counter.push  the same" in done.stdout
    assert "SOLUTION" not in done.stdout


def test_diff_names_a_file_that_cannot_be_read(course: Course) -> None:
    course.record(**ALL_PASS)
    (course.mine / "sums.py").write_text("def add(:\n")
    done = course.lab("diff", "1", "--task", "1")
    assert done.returncode == 2
    assert "line 1 is not valid Python" in done.stderr


def test_demo_runs_the_students_code_and_names_what_it_lacks(course: Course) -> None:
    done = course.lab("demo", "1", NANOVLLM_CODE="reference")
    assert done.returncode == 1
    assert "lab check 01 --task 1" in done.stderr
    assert "Traceback" not in done.stderr
    course.solve("sums.py")
    assert course.lab("demo", "1").stdout == "demo: 42\n"
    (course.mine / "sums.py").write_text("def add(a, b):\n    return a.b\n")
    done = course.lab("demo", "1")
    assert "AttributeError" in done.stderr
    assert "nanovllm/tokenization/sums.py:2 in add: return a.b" in done.stderr
    (course.root / "labs" / "lab01" / "demo.py").unlink()
    assert "demo.py is missing" in course.refused("demo", "1")


def test_demo_refuses_at_once_when_a_task_it_needs_is_missing(course: Course) -> None:
    described = course.root / "labs" / "lab01" / "lab.toml"
    described.write_text("demo = [1, 2]\n" + described.read_text())
    course.solve("sums.py")
    done = course.lab("demo", "1")
    assert (done.returncode, done.stdout) == (1, "")
    assert "needs lab01 task 2, which is not written yet" in done.stderr


# time -------------------------------------------------------------------------------------------


def test_breaks_do_not_count() -> None:
    limit = work_time.BREAK_SECONDS
    events = [Event(100, "lab01", 1), Event(150 + limit, "lab01", 1), Event(150, "lab01", 2)]
    assert active_seconds(40, events) == {("lab01", 1): 60, ("lab01", 2): 50}
    assert active_seconds(None, [Event(1, "lab01", 1)]) == {}
    assert active_seconds(200, [Event(100, "lab01", 1)]) == {}


def test_saves_and_checks_add_up_by_task(course: Course) -> None:
    records = course.records
    now = time.time()
    records["last"]["at"] = now - 1500
    course.state_file.write_text(json.dumps(records))
    for name, ago in (("sums.py", 900), ("scale.py", 400)):
        os.utime(course.mine / name, (now - ago, now - ago))
    os.utime(course.mine / "__init__.py", (now + 10**6, now + 10**6))
    shown = course.lab("time").stdout
    add, counter = (
        next(line for line in shown.splitlines() if title in line)
        for title in ("1 Add ", "2 Counter")
    )
    assert add.split()[2:5] == ["0:10", "0:10", "100%"]
    assert counter.split()[2:4] == ["0:08", "0:30"]
    course.record(**ALL_PASS)
    seconds = course.records["labs"]["lab01"]["seconds"]
    assert seconds["1"] == pytest.approx(600, abs=1)
    assert seconds["2"] == pytest.approx(900, abs=60)  # what was saved last was worked on
    for done in range(2):  # after the last point it is no task's time
        records = course.records
        records["last"]["at"] = time.time() - 300
        course.state_file.write_text(json.dumps(records))
        course.record(**ALL_PASS)
        after = course.records["labs"]["lab01"]["seconds"]
        assert (after["1"], after["2"]) == (seconds["1"], seconds["2"])
        assert after["0"] == pytest.approx(300 * (done + 1), abs=20)
    assert "2 Counter" not in course.lab("time", "2").stdout


def test_time_refuses_before_the_first_start(tmp_path: Path) -> None:
    assert "no lab is started yet" in make_course(tmp_path).refused("time").lower()


# everything -------------------------------------------------------------------------------------


def test_another_copy_of_the_course_is_refused(course: Course, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "labs").mkdir(parents=True)
    (other / "grader" / "course").mkdir(parents=True)
    (other / "grader" / "course" / "paths.py").write_text("")
    done = course.lab("check", "1", cwd=other / "labs")
    assert done.returncode == 2
    assert "another" in done.stderr
    assert course.lab(cwd=course.root / "labs" / "lab01").returncode == 0


@pytest.mark.parametrize(
    "command", ["start", "check", "watch", "list", "hint", "reset", "diff", "demo", "pack"]
)
def test_every_command_refuses_an_unknown_lab(command: str, course: Course) -> None:
    words = [command, "42", *(["1"] if command == "hint" else [])]
    assert "lab01, lab02" in course.refused(*words)


def test_unknown_words_and_help(course: Course) -> None:
    assert course.lab("chekc").returncode == 2
    done = course.lab("--help")
    for command in (
        "start",
        "check",
        "watch",
        "list",
        "hint",
        "reset",
        "diff",
        "demo",
        "doctor",
        "time",
        "pack",
    ):
        assert command in done.stdout


ROOT_CANNOT = os.geteuid() == 0 and not shutil.which("setpriv")


@pytest.mark.skipif(ROOT_CANNOT, reason="root may write anywhere, and there is no setpriv")
def test_a_read_only_course_is_told_and_left_as_it_is(course: Course) -> None:
    course.solve("sums.py")
    for folder in (course.root, course.mine, course.state_file.parent):
        folder.chmod(0o555)
    course.state_file.chmod(0o444)
    course.state_file.with_name("state.lock").chmod(0o444)
    before = {path: path.read_bytes() for path in course.mine.glob("*.py")}
    as_user = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override"]
    try:
        for words, code in (
            (["reset", "1", "-y"], 2),
            (["hint", "1", "2", "-y"], 2),
            (["pack", "1"], 2),
            ([], 0),
            (["time"], 0),
            (["list", "1"], 0),
        ):
            done = subprocess.run(
                [
                    *(as_user if os.geteuid() == 0 else []),
                    sys.executable,
                    "-m",
                    "grader.student.lab_command",
                    *words,
                ],
                cwd=course.root,
                env=course.environment,
                capture_output=True,
                text=True,
            )
            assert done.returncode == code, done
            assert "Traceback" not in done.stderr
            assert ("Permission denied" in done.stderr) == (code == 2)
    finally:
        for folder in (course.root, course.mine, course.state_file.parent):
            folder.chmod(0o755)
    assert {path: path.read_bytes() for path in course.mine.glob("*.py")} == before


# notebooks --------------------------------------------------------------------------------------

CELL = "from grader.student.notebook import check_task\nprint('value', check_task('1', {task}))"


def test_a_notebooks_check_is_on_the_record_and_tells_the_points_first(course: Course) -> None:
    course.solve("scale.py")
    text = (course.mine / "sums.py").read_text()
    (course.mine / "sums.py").write_text(text.replace("raise NotImplementedError", "return 7 #"))
    shown = course.python(CELL.format(task=2))
    assert shown.index("task 2  Counter") < shown.index("╭─ lab01 task 2 · Counts · 12 points")
    assert " 8/20" in shown
    assert "value None" in shown and "20.0" not in shown and "8.0" not in shown
    results = course.records["labs"]["lab01"]["results"]["isolated"]
    assert {name.rpartition("::")[2]: one["status"] for name, one in results.items()} == {
        "test_push": "failed",
        "test_double": "passed",
    }
    board = course.lab().stdout
    assert "8/20" in board and "~8/20" not in board


def test_a_notebooks_check_in_nbgrader_gives_points_and_records_nothing(course: Course) -> None:
    course.solve("sums.py", "scale.py")
    shown = course.python(CELL.format(task=2), NBGRADER_EXECUTION="validate")
    assert "value 20.0" in shown
    assert not course.records["labs"]["lab01"]["results"]["isolated"]
    assert "value 0.0" in course.python(CELL.format(task=2), NBGRADER_EXECUTION="autograde")


def test_a_notebooks_check_of_no_task_is_one_sentence(course: Course) -> None:
    assert course.python(CELL.format(task=9)) == (
        "lab01 has no task 9; its tasks are 1, 2.\nvalue None\n"
    )
