"""Each pack is graded by the checks of its own release; who gains by a mended check is named."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from grader.course.paths import ROOT
from grader.course.release_record import Record
from grader.grading import LabReport, Sandbox, grade_rows, grade_submission, submission
from grader.grading.batch import grade_class
from grader.grading.class_submissions import discover
from grader.grading.grade import UNKEPT
from grader.grading.grade_command import by_release
from grader.grading.grading_toml import Config
from grader.grading.journal import Journal
from grader.grading.kept_releases import is_unknown, made_with
from grader.grading.report_text import lab_text
from grader.release.keep_release import keep
from tests.grading_corpus import FULL, LAB, LIMITS, SECRET, WHOLE, write_solved

RIGHT, WRONG = "[300, 256, 90, 8, 8, 100, 8, 0]", "[300, 256, 90, 8, 8, 100, 8, 1]"
MODELS_ARE_THERE = """
from pathlib import Path
assert (Path(__file__).resolve().parents[2] / "models" / "target" / "config.json").read_text()
"""
WORTH = 2.0  # of the check in which it stands


@pytest.fixture
def releases(tmp_path: Path) -> Path:
    """Release 1 has two tasks, and a check that asks for a wrong number; release 2 is today's."""
    kept, home = tmp_path / "kept", Path("labs", WHOLE.key)
    paths = [path for path in WHOLE.folder.rglob("*") if path.suffix in (".py", ".toml", ".json")]
    files = {(home / path.relative_to(WHOLE.folder)).as_posix(): "" for path in paths}
    for number in (1, 2):
        keep(ROOT, Record(files, "abcd", number), kept)
    old = kept / "abcd-1" / "labs" / WHOLE.key
    text = (old / "lab.toml").read_text()
    head, *tasks = re.split(r"^(?=\[\[task\]\])", text, flags=re.MULTILINE)
    chosen = [task for task in tasks if re.search(r"^id = [13]$", task, re.MULTILINE)]
    (old / "lab.toml").write_text("".join([head, *chosen]))
    (check,) = old.glob("test_3_*.py")
    assert RIGHT in check.read_text()
    check.write_text(check.read_text().replace(RIGHT, WRONG) + MODELS_ARE_THERE)
    return kept


def hand_in(folder: Path, release: object, *names: str) -> None:
    write_solved(folder, *names)
    (folder / "manifest.json").write_text(json.dumps({"release": release}))


@pytest.mark.skipif(sys.platform != "linux", reason="macOS has resource limits alone")
@pytest.mark.parametrize("level", ["", "landlock"])
@pytest.mark.few(1)
def test_each_by_its_own_checks(tmp_path: Path, releases: Path, level: str) -> None:
    solved = ("budget.py", "request.py")
    class_ = tmp_path / "class"
    hand_in(class_ / "ada", {"course": "abcd", "number": 1}, *solved)
    hand_in(class_ / "bob", {"course": "abcd", "number": 1})
    hand_in(class_ / "cyd", {"course": "abcd", "number": 7}, *solved)
    with Sandbox.open(level) as box:
        journal = Journal(tmp_path / "journal.jsonl")
        work = (discover(class_), LAB, SECRET, Config(LIMITS), box)
        found = {one.handed_in.student: one for one in grade_class(*work, journal, 2, releases)}
        again = list(grade_class(*work, journal, 2, releases))
        (today,) = grade_class(work[0][:1], *work[1:], journal, 2, None)
    assert not [one.report.warnings for one in found.values() if one.report.lost]
    ada, bob, cyd = (found[name] for name in ("ada", "bob", "cyd"))
    assert (ada.report.points, ada.today.points) == (FULL - WORTH, FULL), lab_text(ada.report)
    assert "by the checks of release abcd-1" in lab_text(ada.report)
    assert ada.report.release == "abcd-1" and ada.today.release == ""
    assert (bob.report.points, bob.today.points) == (0, 0)
    assert cyd.report.points == FULL and cyd.today is None and cyd.unkept and not ada.unkept
    assert all(one.known for one in again)
    assert today.report == ada.today and today.today is None
    rows = [grade_rows.row(one.handed_in, one.report, 0.0, one.today) for one in found.values()]
    said = "\n".join(by_release(rows))
    assert "2 of 3 were graded by the checks that they were made with (release abcd-1)" in said
    gain = f"ada: {FULL - WORTH:g}, today's checks would give {FULL:g}: test_token_budget (failed"
    assert f"{gain}, today's pas" in said
    assert "today's checks would give the other 1 the same" in said
    grade_rows.summary(tmp_path / "grades.json", rows)
    summary = {one["student"]: one for one in json.loads((tmp_path / "grades.json").read_text())}
    assert summary["ada"]["points_by_todays_checks"] == FULL
    assert summary["cyd"]["points_by_todays_checks"] == summary["cyd"]["points"]


@pytest.mark.skipif(sys.platform != "linux", reason="macOS has resource limits alone")
def test_who_names_a_release_that_is_not_kept_reads_it_in_nbgrader(
    tmp_path: Path, releases: Path
) -> None:
    for name, number in (("ada", 2), ("cyd", 7)):
        hand_in(tmp_path / name, {"course": "abcd", "number": number})
    options = {"secret": SECRET, "limits": LIMITS, "releases": releases}
    ada, cyd = (
        grade_submission(tmp_path / name, [WHOLE.key], student=name, **options)
        for name in ("ada", "cyd")
    )
    assert UNKEPT in cyd.warnings and UNKEPT not in ada.warnings


def test_a_release_that_grades_alike_is_todays(releases: Path) -> None:
    """Handouts and hints may differ: no second process, and results that are known stay so."""
    (releases / "abcd-2" / "labs" / WHOLE.key / "README.md").write_text("older")
    assert made_with(WHOLE, "abcd-2", releases) is WHOLE
    assert made_with(WHOLE, "abcd-1", releases).folder == releases / "abcd-1/labs" / WHOLE.key


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"[]",
        b"{" * 100_000,
        b'{"release": 3}',
        b'{"release": {"course": "../kept/abcd", "number": 1}}',
        b'{"release": {"course": "", "number": 0}}',
        b'{"release": {"course": "abcd", "number": "1/labs"}}',
        b'{"release": {"course": ["x"], "number": null}}',
    ],
)
def test_what_a_manifest_says_is_never_a_path(tmp_path: Path, releases: Path, said: bytes) -> None:
    folder = write_solved(tmp_path / "ada")
    (folder / "manifest.json").write_bytes(said)
    found = submission.read(folder, LAB, LIMITS)
    assert not found.problem and len(found.files) > 5
    assert made_with(LAB, found.release, releases) is LAB
    assert is_unknown(found.release, releases) == bool(found.release)


def test_reports_of_before_are_still_read() -> None:
    report = LabReport("lab04", "Batching", "ada", {}, "bubblewrap").to_json()
    del report["release"]
    assert LabReport.from_json(report).release == ""
