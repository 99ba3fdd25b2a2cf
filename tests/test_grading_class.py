"""Around the grading of a class: who handed in, configuration, exports, item analysis, journal."""

from __future__ import annotations

import csv
import dataclasses
import json
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from grader.__main__ import app as grader_app
from grader.checks.markers import collect_checks
from grader.course.errors import LabError
from grader.grading import (
    LabReport,
    TaskReport,
    grade_rows,
    gradebook_csv,
    report_files,
    student_seeds,
)
from grader.grading.class_submissions import HandedIn, discover
from grader.grading.grade_command import class_table
from grader.grading.grading_toml import Config
from grader.grading.item_analysis import analyse, correlation
from grader.grading.item_plot import picture
from grader.grading.journal import Journal
from grader.grading.report import AGREES, BROKEN, DIFFERS, CheckReport, ScenarioReport
from grader.grading.report_text import lab_html, lab_text, task_html, task_text
from grader.sandbox.limits import Limits
from tests.grading_corpus import LAB, SECRET


def task(points: list[int], passed: list[bool], *scenarios: str, id: int = 1) -> TaskReport:
    checks = tuple(
        CheckReport(
            f"t::c{i}", f"check {i}", worth, "passed" if ok else "failed", "" if ok else "r"
        )
        for i, (worth, ok) in enumerate(zip(points, passed, strict=True))
    )
    found = tuple(ScenarioReport(f"s{i}", status) for i, status in enumerate(scenarios))
    return TaskReport(id, "A task", float(sum(points)), checks, found)


def report(student: str = "ada", **more: object) -> LabReport:
    tasks = {1: task([6, 4], [True, False], AGREES), 3: task([8], [True], AGREES, id=3)}
    return LabReport("lab04", "Batching", student, tasks, "bubblewrap", key=student, **more)


@pytest.mark.parametrize(
    ("passed", "scenarios", "points"),
    [
        ([True, True], [AGREES], 10),
        ([True, False], [AGREES], 6),
        ([True, True], [DIFFERS], 0),
        ([True, True], [AGREES, DIFFERS], 5),
        ([False, True], [AGREES, DIFFERS], 4),
        ([True, True], [AGREES, BROKEN], 10),
        ([False, False], [AGREES], 0),
    ],
)
def test_points_need_checks_and_scenarios(passed: list, scenarios: list, points: float) -> None:
    found = task([6, 4], passed, *scenarios)
    assert found.points == points
    assert bool(found.reason) == (points < 10)


def test_a_task_that_waits_for_another_says_so_once() -> None:
    checks = [
        CheckReport(f"t::c{i}", f"check {i}", 2, "blocked", "blocked by task 2") for i in "ab"
    ]
    waiting = TaskReport(4, "Scheduler", 4.0, tuple(checks), ())
    assert task_html(waiting).count("blocked by task 2") == 1
    assert task_text(waiting).count("blocked by task 2") == 1
    other = CheckReport("t::d", "check d", 2, "failed", "got 3, expected 4")
    mixed = TaskReport(4, "Scheduler", 6.0, (*checks, other), ())
    assert (
        task_html(mixed).count("blocked by task 2")
        == task_text(mixed).count("blocked by task 2")
        == 2
    )
    assert "got 3, expected 4" in task_html(mixed)


def test_a_report_survives_json() -> None:
    first = report(warnings=("careful",))
    assert LabReport.from_json(json.loads(json.dumps(first.to_json()))) == first


def test_students_are_told_by_canvas_moodle_and_plain_names(tmp_path: Path) -> None:
    for name in ("lovelaceada_LATE_12_345_lab04.zip", "bob-lab04.zip", ".hidden.zip"):
        (tmp_path / name).touch()
    inside = tmp_path / "Grace Hopper_77_assignsubmission_file_"
    inside.mkdir()
    (inside / "lab04.zip").touch()
    found = {one.student: one for one in discover(tmp_path)}
    assert set(found) == {"lovelaceada", "bob", "Grace Hopper"}
    assert found["lovelaceada"].id == "12"
    assert found["Grace Hopper"].path == inside / "lab04.zip"
    (tmp_path / "bob").mkdir()
    with pytest.raises(LabError, match="both of bob"):
        discover(tmp_path)


@pytest.mark.parametrize(
    ("name", "student", "id"),
    [
        # What follows Canvas' or Moodle's part is the name of the file as the student chose it.
        ("mallory_66_5_x_12_assignsubmission_file_.zip", "mallory", "66"),
        ("mallory_LATE_66_5_bob_12_345_lab04.zip", "mallory", "66"),
        ("Mal Lory_66_assignsubmission_file_bob_12_assignsubmission_file_.zip", "Mal Lory", "66"),
    ],
)
def test_nobody_hands_in_as_somebody_else(tmp_path: Path, name: str, student: str, id: str) -> None:
    (tmp_path / name).touch()
    (found,) = discover(tmp_path)
    assert (found.student, found.id) == (student, id)


def test_of_two_uploads_to_canvas_the_newer_counts(tmp_path: Path) -> None:
    for name in ("bob_12_999_lab04.zip", "bob_LATE_12_1003_lab04-1.zip", "ann_13_9_lab04.zip"):
        (tmp_path / name).touch()
    found = {one.student: one.path.name for one in discover(tmp_path)}
    assert found == {"bob": "bob_LATE_12_1003_lab04-1.zip", "ann": "ann_13_9_lab04.zip"}


def test_one_id_belongs_to_one_student(tmp_path: Path) -> None:
    for name in ("bob_12_345_lab04.zip", "mallory\x1b[2J_12_9_lab04.zip"):
        (tmp_path / name).touch()
    with pytest.raises(LabError, match="both of 12") as error:
        discover(tmp_path)
    assert "\x1b" not in str(error.value)


def test_a_roster_fills_in(tmp_path: Path) -> None:
    (tmp_path / "in" / "x1").mkdir(parents=True)
    roster = tmp_path / "roster.csv"
    roster.write_text("file,student,email,submitted\nx1,ada,a@b.c,2026-10-02T00:10:00+02:00\n")
    (one,) = discover(tmp_path / "in", roster)
    assert (one.student, one.email) == ("ada", "a@b.c")
    roster.write_text("file,shoe\nx1,42\n")
    with pytest.raises(LabError, match="unknown column 'shoe'"):
        discover(tmp_path / "in", roster)


def test_late_policy(tmp_path: Path) -> None:
    path = tmp_path / "grading.toml"
    path.write_text(
        "[late]\npercent_per_day = 20\ngrace_minutes = 15\nlast_day = 3\n"
        "[late.deadlines]\nlab04 = 2026-10-01T23:59:00+02:00\n[limits]\nseconds = 99\n"
    )
    config = Config.load(path)
    due = datetime.fromisoformat("2026-10-01T23:59:00+02:00")
    late = [
        timedelta(),
        timedelta(minutes=15),
        timedelta(minutes=16),
        timedelta(days=2),
        timedelta(days=4),
    ]
    found = [config.late.penalty("lab04", due + more) for more in late]
    assert found == pytest.approx([0, 0, 0.2, 0.4, 1.0])
    assert config.late.penalty("lab01", due + timedelta(days=9)) == 0
    assert config.limits.seconds == 99


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[later]\n", "unknown table 'later'"),
        ("[late]\npercent = 3\n", "unknown key of .late. 'percent'"),
        ("[limits]\nsecond = 3\n", "unknown limit 'second'"),
        ("[limits]\nseconds = 0\n", "above 0"),
        ("[late]\nlast_day = 'never'\n", "must be a number"),
        ("[late.deadlines]\nlab04 = 2026-10-01T23:59:00\n", "offset"),
        ("[late.deadlines]\nlab99 = 2026-10-01T23:59:00Z\n", "no lab"),
        ("[late", "cannot be read"),
        ("late = 10\n", "must be a table of names and values, not 10"),
        ("[late]\ndeadlines = '2026-10-01'\n", "deadlines. must be a table"),
        ("limits = 'all'\n", "limits. must be a table"),
        ("releases = 3\n", "must be the name of a folder"),
        ("# f\xfcr alle\n", "cannot be read"),
    ],
)
def test_config_rejects(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "grading.toml"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(LabError, match=says):
        Config.load(path)


def test_where_releases_are_kept_is_told_from_the_file_on(tmp_path: Path) -> None:
    path = tmp_path / "grading.toml"
    path.write_text('releases = "of fall"\n')
    assert Config.load(path).kept() == tmp_path / "of fall"
    path.write_text('releases = "of fall"\nchecks = "new"\n')
    assert Config.load(path).kept() is None


def test_exports_quote_and_do_not_compute(tmp_path: Path) -> None:
    names = ['O"Neil, "Sam"', "=HYPERLINK(1)", "Zoë\nLi", "ada"]
    rows = [
        grade_rows.row(HandedIn(name, Path("x.zip"), id="7"), report(name), 0.5) for name in names
    ]
    gradebook_csv.canvas(tmp_path / "canvas.csv", rows, "lab04 (123)")
    gradebook_csv.moodle(tmp_path / "moodle.csv", rows, "lab04")
    grade_rows.summary(tmp_path / "grades.json", rows)
    with (tmp_path / "canvas.csv").open(newline="", encoding="utf-8") as file:
        canvas = list(csv.reader(file))
    assert canvas[0] == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "lab04 (123)"]
    assert canvas[1] == ["    Points Possible", "", "", "", "", "18"]
    assert [line[0] for line in canvas[2:]] == [names[0], "'=HYPERLINK(1)", *names[2:]]
    assert {line[5] for line in canvas[2:]} == {"7"}
    with (tmp_path / "moodle.csv").open(newline="", encoding="utf-8") as file:
        assert [line["lab04"] for line in csv.DictReader(file)] == ["7"] * 4
    assert json.loads((tmp_path / "grades.json").read_text("utf-8"))[0]["final"] == 7


@pytest.mark.parametrize(
    "name",
    ["\n=1+1", " =1+1", "\uff1d1+1", "\uff0b1", "\u200b=1+1", "\udcff\u202eada\u061c", "a;=1+1"],
)
def test_no_name_computes_or_stops_the_export(tmp_path: Path, name: str) -> None:
    rows = [grade_rows.row(HandedIn(name, Path("x.zip")), report(name), 0.0)]
    gradebook_csv.canvas(tmp_path / "canvas.csv", rows, "lab04")
    gradebook_csv.moodle(tmp_path / "moodle.csv", rows, "lab04")
    grade_rows.summary(tmp_path / "grades.json", rows)
    with (tmp_path / "canvas.csv").open(newline="", encoding="utf-8") as file:
        (cell, *_) = list(csv.reader(file))[-1]
    assert cell.startswith(("'", "?", "a,"))
    assert ";" not in (tmp_path / "moodle.csv").read_text("utf-8")
    assert not {"\u202e", "\u061c", "\u200b"} & set(cell)


def test_report_files_stay_in_their_folder(tmp_path: Path) -> None:
    names = ["../../evil", "a/b", "a_b", "..", "", "x" * 300, "ada", "Ada", "ADA"]
    names += [
        report_files.file_name("a/b"),
        report_files.file_name("Ada"),
    ]  # taken as names by somebody else
    for name in names:
        report_files.reports(tmp_path / "reports", report(name))
    assert len({report_files.file_name(name).lower() for name in names}) == len(names)
    # Nobody finds a second name with the same digest by trying: 2^64 of them for even odds.
    assert all(
        len(report_files.file_name(name).rpartition("-")[2]) == 32 for name in ("a/b", "Ada", "")
    )
    assert len(list((tmp_path / "reports").iterdir())) == 2 * len(names)
    assert {path.name for path in tmp_path.iterdir()} == {"reports"}


def test_journal_keeps_what_was_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    for name in ("ada", "bob", "ada"):
        journal.add(report(name))
    with pytest.raises(LabError, match="another grader"):
        Journal(path)
    journal.close()
    assert len(path.read_text().splitlines()) == 2
    with path.open("a") as file:
        file.write('{"key": "cyd", "torn')
    again = Journal(path)
    assert len(again) == 2 and "cyd" not in again
    assert again.get("bob") == report("bob")
    again.add(report("cyd"))
    again.close()
    assert Journal(path).get("cyd") == report("cyd")


def test_seeds_and_keys_depend_on_what_they_must() -> None:
    from grader.grading.submission import Submission

    assert student_seeds.seeds(SECRET, LAB, "ada") == student_seeds.seeds(SECRET, LAB, "ada")
    drawn = [*student_seeds.seeds(SECRET, LAB, "ada"), *student_seeds.seeds(SECRET, LAB, "bob"),
             *student_seeds.seeds(b"another secret of a course", LAB, "ada")]  # fmt: skip
    assert len(set(drawn)) == len(drawn)
    base = (Submission({"a.py": b"1"}), LAB, "ada", SECRET, Limits(), "bubblewrap")
    changed = [
        (0, Submission({"a.py": b"2"})), (2, "bob"), (3, b"another secret of a course"),
        (4, Limits(seconds=7)), (5, "landlock"),
    ]  # fmt: skip
    found = {student_seeds.result_key(*base)}
    assert student_seeds.result_key(*base) in found
    for place, value in changed:
        found.add(student_seeds.result_key(*base[:place], value, *base[place + 1 :]))
    assert len(found) == 1 + len(changed)


def test_the_secret_is_made_once_and_kept_private(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    first = student_seeds.course_secret(path)
    assert student_seeds.course_secret(path) == first and len(first) >= 32
    assert path.stat().st_mode & 0o077 == 0
    path.write_text("short")
    with pytest.raises(LabError, match="shorter"):
        student_seeds.course_secret(path)


def test_correlation_is_guarded() -> None:
    ones, steps = np.ones(5), np.arange(5.0)
    assert correlation(ones, steps) is None
    assert correlation(steps, ones) is None
    assert correlation(steps[:2], steps[:2]) is None
    assert correlation(steps, 2 * steps) == pytest.approx(1.0)


def test_items(tmp_path: Path) -> None:
    checks = [check for check in collect_checks(LAB) if check.task in (1, 3)]
    mistakes = json.loads((LAB.folder / "mistakes.json").read_text("utf-8"))["observations"]
    known = next(mistakes[check.id][0] for check in checks if mistakes.get(check.id))

    def student(skill: int) -> LabReport:
        tasks = {
            number: TaskReport(
                number, "t", float(LAB.task(number).points),
                tuple(
                    CheckReport(c.id, c.title, c.points, *(("passed", "", "") if place < skill
                                else ("failed", "r", known["name"])))
                    for place, c in enumerate(checks) if c.task == number
                ),
                (ScenarioReport("s", DIFFERS),),
            )
            for number in (1, 3)
        }  # fmt: skip
        return LabReport("lab04", "Batching", f"s{skill}", tasks, "bubblewrap")

    found = analyse(LAB, [student(skill) for skill in range(len(checks) + 1)])
    assert [item.passed for item in found.items] == list(range(len(checks), 0, -1))
    assert all(item.discrimination is None or item.discrimination > 0 for item in found.items)
    assert [(slip.name, slip.students) for slip in found.slips] == [(known["name"], len(checks))]
    assert found.disagreeing[1] > 0
    picture(found, tmp_path / "items.png")
    assert (tmp_path / "items.png").stat().st_size > 10_000
    with pytest.raises(LabError, match="no submission"):
        analyse(LAB, [])


def test_items_of_several_releases(tmp_path: Path) -> None:
    """A check that one release lacks, and another order: each counts those who had it."""

    def of(student: str, **passed: bool) -> LabReport:
        checks = [CheckReport(name, name, 5, "passed" if ok else "failed")
                  for name, ok in passed.items()]  # fmt: skip
        task = TaskReport(1, "t", 10.0, tuple(checks), ())
        return LabReport("lab04", "Batching", student, {1: task}, "bubblewrap")

    found = analyse(
        LAB, [of("a", one=True, two=False), of("b", two=True), of("c", two=True, one=False)]
    )
    assert [(i.name, i.students, i.passed) for i in found.items] == [("one", 2, 1), ("two", 3, 2)]


def test_the_lab_of_the_tests_is_a_part_of_lab04() -> None:
    assert dataclasses.asdict(LAB)["number"] == 4
    assert [task.id for task in LAB.tasks] == [1, 3]


def test_the_table_fits_and_shows_every_student() -> None:
    rows = [
        grade_rows.row(HandedIn(name, Path("x")), report(name), 0.2) for name in ("ada", "[red]b")
    ]
    console = Console(width=80, record=True)
    console.print(class_table(LAB, rows))
    text = console.export_text()
    assert "[red]b" in text
    assert "-20 %" in text and "11.2/18" in text


def test_no_text_of_a_student_hides_turns_or_adds_a_line() -> None:
    tricks = "\u200e\u200f\u061c\u200b\u2060\ufeff\u00ad\u2028\u2029\U000e0041\x1b\u202e"
    name = f"zed\nbob  10  8  18/18 {tricks}"
    found = report(name, warnings=(f"first\nbob 18/18{tricks}",))
    rows = [grade_rows.row(HandedIn(name, Path("x")), found, 0)]
    console = Console(width=200, record=True)
    console.print(class_table(LAB, rows))
    table = console.export_text()
    assert sum("bob" in line for line in table.splitlines()) == 1
    for text in (table, lab_text(found), lab_html(found)):
        assert not set(text) & set(tricks)
    assert not any(line.startswith("bob") for line in lab_text(found).splitlines())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere", "--lab", "04"], "nowhere is no folder"),
        ([".", "--lab", "99"], "no lab"),
        ([".", "--lab", "04", "--sandbox", "wishes"], "no sandbox 'wishes'"),
    ],
)
def test_the_command_says_what_is_wrong(tmp_path: Path, arguments: list[str], says: str) -> None:
    secret = ["--secret", str(tmp_path / "secret"), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(grader_app, ["grade", *arguments, *secret])
    assert says in str(result.exception)
    assert not (tmp_path / "out").exists()


def say(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> str:
    """What `python -m grader` says to a wrong use; it ends with 2 and no traceback."""
    from grader.__main__ import main

    monkeypatch.setattr("sys.argv", ["grader", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    return " ".join(capsys.readouterr().out.split())


def test_wrong_uses_end_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    (tmp_path / "packs" / "ada").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.pdf").touch()
    (tmp_path / "file").touch()
    (tmp_path / "g.toml").write_text("[late]\nshoes = 1\n")
    (tmp_path / "r.csv").write_text("name,id\nAda,1\n")
    journal = Journal(tmp_path / "of04" / "journal.jsonl")
    journal.add(report())
    journal.close()
    of_lab04 = tmp_path / "of04" / "grades.json"
    of_lab04.write_text('[{"key": "ada"}]')
    out = ["--out", str(of_lab04.parent)]
    common = ["--lab", "01", "--secret", str(tmp_path / "secret")]
    packs = ["grade", str(tmp_path / "packs"), *common]
    cases = [
        ([*packs, "--config", str(tmp_path / "g.toml")], "unknown key of [late] 'shoes'"),
        ([*packs, "--out", str(tmp_path / "file")], "file is there already and is no folder"),
        ([*packs, "--roster", str(tmp_path / "r.csv")], "has neither a column file nor student"),
        (["grade", str(tmp_path / "empty"), *common], "no submission in it; left out: notes.pdf"),
        ([*packs, *out], "of04 holds the results of lab04, which those of lab01 would replace; "),
        (["items", "--lab", "01", *out], "the results of lab04, and not of lab01; give --lab or"),
        (["classroom", str(tmp_path / "file")], "file is there already and is no folder"),
        (["mistakes", "05", "--only", "typo"], "no mistake of lab05 is named 'typo'"),
        (["mutants", "05", "--variant", "typo"], "no variant 'typo' of lab05; there are"),
    ]
    for words, wanted in cases:
        assert wanted in say(words, capsys, monkeypatch)
    assert of_lab04.read_text() == '[{"key": "ada"}]'


def test_the_roster_of_nbgrader_names_students_as_autograde_does(tmp_path: Path) -> None:
    names = ("lovelaceada_LATE_12_345_lab04.zip", "hoppergrace_99_9_lab04.zip", "eve.zip")
    for name in names:
        (tmp_path / name).touch()
    roster = tmp_path / "roster.csv"
    roster.write_text(
        "id,first_name,last_name,email,lms_user_id\n"
        "al1,Ada,Lovelace,a@b.c,12\ngh2,Grace,Hopper,g@b.c,\n"
    )
    found = {one.student: one for one in discover(tmp_path, roster)}
    assert set(found) == {"al1", "gh2", "eve"}
    ada = found["al1"]
    assert (ada.id, ada.login, ada.name, ada.email) == ("12", "al1", "Lovelace, Ada", "a@b.c")
