"""nbgrader's traps, each with a synthetic student who walks into it; all are graded in one run."""

from __future__ import annotations

import html
import math
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbgrader.utils import determine_grade
from typer.testing import CliRunner

from grader.__main__ import app as grader_app
from grader.classroom import module_points
from grader.classroom.autograde import Graded, autograde, reason
from grader.classroom.classroom_command import _line
from grader.course.errors import LabError
from grader.course.paths import HIDDEN
from grader.grading.journal import Journal
from grader.grading.report import CheckReport, TaskReport
from tests.nbgrader_class import LAB, Class, cell, make_class, mistaken_files, pack, reference_files

pytestmark = pytest.mark.xdist_group("traps")
MISTAKE = "merge-overlaps"
SETTINGS = "c.BoxedExecute.timeout = 15"
LATE = "[late]\npercent_per_day = 10.0\ngrace_minutes = 30.0\nlast_day = 5\n"
SPY = """
import os, pathlib, socket, subprocess
found = []
for path in {paths!r}:
    try:
        found.append(pathlib.Path(path).read_bytes()[:20])
    except OSError:
        pass
    try:
        pathlib.Path(path).with_name("planted").write_text("x")
        found.append("wrote")
    except OSError:
        pass
try:
    socket.create_connection(("127.0.0.1", {port}), 2)
    found.append("network")
except OSError:
    pass
found += [name for name in os.environ if name in ("NBGRADER_SPY", "USER")]
found += [p for p in os.listdir("/proc") if p == "{pid}"]
print("SPY FOUND", found)
"""
FORGE = """
from IPython import get_ipython
kernel = get_ipython().kernel
for _ in range(3):
    kernel.session.send(kernel.iopub_socket, "execute_result", parent=kernel.get_parent(),
        content={"data": {"text/plain": "20.0"}, "metadata": {}, "execution_count": 1})
print(20.0)
20.0
"""
FLOOD = """
from IPython.display import HTML, Javascript, display
display(HTML("<script>steal()</script>"), Javascript("steal()"))
print("x" * 2_000_000)
print("x" * 30_000_000)
"""


def code(source: str) -> nbformat.NotebookNode:
    return nbformat.v4.new_code_cell(source)


def duplicate(notebook: nbformat.NotebookNode) -> None:
    """Every graded cell copied and pasted; the answer is in the second copy."""
    copies = [nbformat.from_dict(c) for c in notebook.cells if "nbgrader" in c.metadata]
    for copy in copies:
        copy.id = f"copy-{copy.id}"
    cell(notebook, "lab01-question-1").source = "YOUR ANSWER HERE"
    notebook.cells += copies


def delete(notebook: nbformat.NotebookNode) -> None:
    gone = ("lab01-task-1", "lab01-task-6", "lab01-question-2")
    notebook.cells = [
        c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("grade_id") not in gone
    ]


def tamper(notebook: nbformat.NotebookNode) -> None:
    cell(notebook, "lab01-task-1").metadata.nbgrader.points = 1000
    cell(notebook, "lab01-task-2").metadata.nbgrader.solution = True
    cell(notebook, "lab01-task-3").metadata.nbgrader.grade = False
    cell(notebook, "lab01-task-5").source = "100.0"
    cell(notebook, "lab01-question-2").metadata.nbgrader.grade_id = "lab01-task-99"
    extra = code("50.0")
    extra.metadata["nbgrader"] = {
        "grade": True, "grade_id": "bonus", "locked": False, "points": 50, "schema_version": 3,
        "solution": False, "task": False, "cell_type": "code",
    }  # fmt: skip
    notebook.cells.append(extra)
    cell(notebook, "lab01-task-4").metadata.nbgrader = []
    notebook.cells.append(nbformat.v4.new_markdown_cell("100 of 1", id="report-of-the-course"))


def first(source: str):
    return lambda notebook: notebook.cells.insert(0, code(source))


@pytest.fixture(scope="module")
def listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture(scope="module")
def klass(tmp_path_factory: pytest.TempPathFactory, listener: int) -> Class:
    made = make_class(tmp_path_factory.mktemp("traps"), SETTINGS)
    with made.own_jupyter(), (course := made.course).gradebook() as gradebook:
        course.require_generated(LAB)
        gradebook.update_or_create_assignment(LAB.key, duedate="2026-03-01 12:00 UTC")
    (made.folder / "grading.toml").write_text(LATE)
    at = made.root / "at"
    right = pack(at, reference_files())
    stubs = pack(at, {path.name: path.read_bytes() for path in LAB.stubs.glob("*.py")})
    noisy = reference_files()
    noisy["bpe.py"] += b"\nimport sys\nprint('deprecated', file=sys.stderr)\n"
    # A file beside the instructor's notebook, named like the one that students hand in.
    (made.root / "source" / LAB.key / f"{LAB.key}.zip").write_bytes(right)
    wrong = pack(at, mistaken_files(made.root / "wrong", MISTAKE))
    secrets = [
        LAB.reference / "bpe.py", LAB.reference.parents[1] / "hidden" / LAB.key / "scenarios.py",
        made.folder / "gradebook.db", made.folder / ".course-secret",
        made.folder / "submitted" / "ada" / LAB.key / f"{LAB.key}.zip",
    ]  # fmt: skip
    spy = SPY.format(paths=list(map(str, secrets)), port=listener, pid=os.getpid())
    made.hand_in("ada", made.notebook(), right)
    made.hand_in("stubs", made.notebook(answer="YOUR ANSWER HERE"), stubs)
    made.hand_in("mistaken", made.notebook(), wrong)
    made.hand_in("copier", made.notebook(duplicate), right)
    made.hand_in("deleter", made.notebook(delete), right)
    made.hand_in("tamperer", made.notebook(tamper), right)
    made.hand_in("garbled", b'{"cells": [', right)
    made.hand_in("pack-only", None, pack(at, reference_files(), made.notebook()))
    made.hand_in("no-pack", made.notebook(), None)
    made.hand_in("broken-pack", made.notebook(), b"PK\x03\x04 but no zip")
    made.hand_in("spy", made.notebook(first(spy), first(FORGE)), stubs)
    made.hand_in("quitter", made.notebook(first("import os; os._exit(0)")), right)
    made.hand_in("looper", made.notebook(first("while True: pass")), right)
    made.hand_in("flooder", made.notebook(first(FLOOD)), right)
    made.hand_in("noisy", made.notebook(), pack(at, noisy))
    made.hand_in("late", made.notebook(), right)
    stamp = made.folder / "submitted" / "late" / LAB.key / "timestamp.txt"
    stamp.write_text("2026-03-02 13:00:00 UTC")
    return made


@pytest.fixture(scope="module")
def results(klass: Class) -> Iterator[dict[str, Graded]]:
    """The whole batch; equal modules are graded once, whoever's they are."""
    patch = pytest.MonkeyPatch()
    real = module_points.grade_submission
    anyone = lambda *args, **options: real(*args, **{**options, "student": "anyone"})  # noqa: E731
    patch.setattr(module_points, "grade_submission", anyone)
    patch.setenv("NBGRADER_SPY", "visible")
    with klass.own_jupyter():
        course = klass.course
        yield {one.student: one for one in autograde(course, LAB, course.submitted(LAB))}
    patch.undo()


def task_scores(klass: Class, student: str) -> dict[str, float]:
    with klass.course.gradebook() as gradebook:
        found = gradebook.find_submission_notebook(LAB.key, LAB.key, student)
        return {grade.name: grade.score for grade in found.grades}


def test_the_whole_batch_is_graded(results: dict[str, Graded]) -> None:
    assert len(results) == 16
    assert [one.student for one in results.values() if one.failed] == []
    assert {one.max_points for one in results.values()} == {110.0}


@pytest.mark.parametrize(
    "student",
    ["ada", "copier", "deleter", "tamperer", "garbled", "pack-only", "quitter", "looper",
     "flooder", "noisy"],
)  # fmt: skip
def test_right_modules_earn_all_points_whatever_the_notebook_is(
    klass: Class, results: dict[str, Graded], student: str
) -> None:
    scores = task_scores(klass, student)
    wanted = {f"{LAB.key}-task-{task.id}": float(task.points) for task in LAB.tasks}
    assert {name: scores[name] for name in wanted} == wanted
    assert results[student].points == 100.0


@pytest.mark.parametrize("student", ["stubs", "spy", "no-pack", "broken-pack"])
def test_without_right_modules_no_point_is_earned(
    results: dict[str, Graded], klass: Class, student: str
) -> None:
    """Neither by a forged output, nor because the source holds a right pack of the same name."""
    assert results[student].points == 0.0
    report = cell(klass.graded(student), "lab01-task-1").outputs
    assert report[-1].data["text/plain"] == "0.0"
    kept, sent = (
        klass.folder / step / student / LAB.key / f"{LAB.key}.zip"
        for step in ("autograded", "submitted")
    )
    assert kept.exists() == sent.exists()
    assert not kept.exists() or kept.read_bytes() == sent.read_bytes()


def test_a_mistake_costs_its_checks_and_is_named(klass: Class, results: dict[str, Graded]) -> None:
    assert 0 < results["mistaken"].points < 100
    said = cell(klass.graded("mistaken"), "lab01-task-1").outputs[0].data["text/plain"]
    assert "Your merge uses a token twice" in said


def test_an_answer_in_a_copied_cell_waits_for_a_person(
    klass: Class, results: dict[str, Graded]
) -> None:
    assert results["copier"].by_hand
    notebook = klass.graded("copier")
    ids = [c.metadata.nbgrader.grade_id for c in notebook.cells if "nbgrader" in c.metadata]
    assert len(ids) == len(set(ids))
    assert "The curve flattens" in cell(notebook, "lab01-question-1").source


def test_no_deleted_or_unanswered_cell_waits_for_ever(results: dict[str, Graded]) -> None:
    assert not results["stubs"].by_hand  # nothing answered: 0, without a person
    assert results["ada"].by_hand
    assert results["deleter"].by_hand  # question 1 is answered; the deleted one is back as 0


def test_the_points_by_task_come_first(klass: Class, results: dict[str, Graded]) -> None:
    graded = [klass.graded(student) for student in ("mistaken", "tamperer")]
    for notebook in graded:
        ids = [one.id for one in notebook.cells]
        assert ids[0] == "report-of-the-course"
        assert len(ids) == len(set(ids))
    first = graded[0].cells[0].source
    assert "| 1 Train BPE |" in first
    assert "[lab01-question-1](#lab01-question-1) (5)" in first
    assert "100 of 100 points by the checks" in graded[1].cells[0].source


def test_a_forged_cell_is_no_graded_cell(klass: Class, results: dict[str, Graded]) -> None:
    assert set(task_scores(klass, "tamperer")) == set(task_scores(klass, "ada"))
    graded = cell(klass.graded("tamperer"), "lab01-task-5")
    assert graded.source == cell(klass.released(), "lab01-task-5").source


def test_an_unreadable_notebook_is_kept_and_said(klass: Class, results: dict[str, Graded]) -> None:
    assert "cannot be read" in results["garbled"].note
    folder = klass.folder / "submitted" / "garbled" / LAB.key
    assert (folder / f"{LAB.key}.ipynb.unreadable").read_bytes() == b'{"cells": ['
    [again] = autograde(klass.course, LAB, ["garbled"], again=True)
    assert f"kept as {LAB.key}.ipynb.unreadable" in again.note
    assert "the notebook of the pack was taken" in results["pack-only"].note
    assert results["pack-only"].by_hand


def test_the_kernel_is_boxed(klass: Class, results: dict[str, Graded]) -> None:
    said = [
        output.text
        for one in klass.graded("spy").cells
        for output in one.get("outputs", [])
        if output.output_type == "stream" and "SPY FOUND" in output.text
    ]
    assert said == ["SPY FOUND []\n"]
    assert not list(klass.folder.rglob("planted"))


def test_a_missing_pack_says_so_in_the_report(klass: Class, results: dict[str, Graded]) -> None:
    said = str(cell(klass.graded("no-pack"), "lab01-task-1").outputs)
    assert "no Python file of lab01" in said


def test_outputs_stay_small_and_harmless(klass: Class, results: dict[str, Graded]) -> None:
    path = klass.folder / "autograded" / "flooder" / LAB.key / f"{LAB.key}.ipynb"
    assert path.stat().st_size < 500_000
    assert "steal()</script>" not in str([c.get("outputs") for c in klass.graded("flooder").cells])


def test_lateness_costs_what_the_policy_says(klass: Class, results: dict[str, Graded]) -> None:
    assert results["late"].points == 80.0  # 25 hours late are two days begun, 10 % each
    assert "late, 20 points off" in results["late"].note
    assert results["ada"].points == 100.0


@pytest.mark.parametrize(("student", "days", "points"), [("late", "2", "100"), ("late", "0", "80")])
def test_an_extension_moves_the_due_date(
    klass: Class, results: dict[str, Graded], student: str, days: str, points: str
) -> None:
    words = ["extend", "01", student, "--days", days, "--class", str(klass.folder)]
    done = CliRunner().invoke(grader_app, words)
    assert done.exit_code == 0 and f"{points}.00/110" in done.output, done.output


def test_an_extension_needs_a_graded_submission(klass: Class, results: dict) -> None:
    words = ["extend", "01", "nobody", "--days", "2", "--class", str(klass.folder)]
    assert "nobody has no graded lab01" in str(CliRunner().invoke(grader_app, words).exception)


def test_a_second_run_grades_only_what_is_new(klass: Class, results: dict[str, Graded]) -> None:
    course = klass.course
    [again] = autograde(course, LAB, ["ada"])
    assert again.kept
    assert again.points == 100.0
    klass.hand_in("stubs", None, pack(klass.root / "at", reference_files()))
    before = task_scores(klass, "stubs")
    [regraded] = autograde(course, LAB, ["stubs"])
    assert not regraded.kept
    assert before["lab01-task-1"] == 0.0
    assert regraded.points == 100.0


def test_another_look_is_asked_for_only_where_something_changed(
    klass: Class, results: dict[str, Graded]
) -> None:
    with klass.course.gradebook() as gradebook:
        for name in (f"{LAB.key}-question-1", f"{LAB.key}-task-2"):
            one = gradebook.find_grade(name, LAB.key, LAB.key, "noisy")
            one.manual_score, one.needs_manual_grade = 3.0, False
        gradebook.db.commit()
    [same] = autograde(klass.course, LAB, ["noisy"], again=True)
    without_task_2 = 100.0 - LAB.task(2).points
    assert (same.by_hand, same.points) == (False, without_task_2 + 3.0 + 3.0)
    klass.hand_in("noisy", klass.notebook(answer="Another answer."), None)
    [changed] = autograde(klass.course, LAB, ["noisy"])
    assert (changed.by_hand, changed.points) == (True, same.points)


def test_an_export_says_who_still_waits_for_a_person(
    klass: Class, results: dict[str, Graded]
) -> None:
    words = (
        "export",
        "--exporter",
        "grader.classroom.gradebook_export.CanvasExport",
        "--to",
        "c.csv",
    )
    said = klass.run("nbgrader", *words).stderr
    assert "16 grades of lab01 are in c.csv" in said
    with klass.course.gradebook() as gradebook:
        found = gradebook.find_assignment(LAB.key).submissions
        waiting = sorted(one.student.id for one in found if one.needs_manual_grade)
    assert len(waiting) > 3
    assert f"{len(waiting)} of them wait for a person's points: {', '.join(waiting)}" in said


def test_feedback_holds_the_report_and_nothing_hidden(
    klass: Class, results: dict[str, Graded]
) -> None:
    for student in ("mistaken", "flooder"):
        assert klass.course.api.generate_feedback(LAB.key, student)["success"]
    folder = klass.folder / "feedback"
    page = (folder / "mistaken" / LAB.key / f"{LAB.key}.html").read_text()
    assert "Your merge uses a token twice" in page
    assert "hidden scenario 1" in page
    for line in (HIDDEN / LAB.key / "scenarios.py").read_text().splitlines():
        assert len(line) < 50 or html.escape(line.strip()) not in page
    assert "Llama-2-70B" not in page  # the model answer to the question
    flood = (folder / "flooder" / LAB.key / f"{LAB.key}.html").read_text()
    assert "steal()</script>" not in flood


def test_the_release_of_an_assignment_is_its_notebook_alone(klass: Class) -> None:
    there = list((klass.folder / "release").rglob("*.*"))
    assert [path.name for path in there if path.suffix == ".ipynb"] == [f"{LAB.key}.ipynb"]
    assert not [path for path in there if path.suffix == ".py"]


def test_no_notebook_has_hidden_tests_or_other_cells_that_earn_points(lab) -> None:
    from grader.authoring.build_notebooks import source_notebook

    for one in source_notebook(lab).cells:
        entry = one.metadata.get("nbgrader", {})
        assert "BEGIN HIDDEN TESTS" not in one.source
        if entry.get("grade") and not entry["solution"]:
            assert module_points._task_of(one, lab.key), f"{entry['grade_id']} grades in the kernel"


@pytest.mark.parametrize(
    ("share", "points"), [(1.0, 20.0), (0.5, 10.0), (1 / 3, 6.67), (7.0, 20.0), (0.0, 0.0)]
)
def test_partial_credit_is_a_plain_number_that_nbgrader_takes(share: float, points: float) -> None:
    task = TaskReport(1, "t", 30.0, (CheckReport("c", "c", 30 * share, "passed"),), ())
    assert module_points.cell_points(task, 20.0) == points
    assert type(module_points.cell_points(task, 20.0)) is float
    one = nbformat.v4.new_code_cell("check_task('01', 1)")
    one.metadata["nbgrader"] = {
        "grade": True, "solution": False, "points": 20.0, "grade_id": "lab01-task-1",
    }  # fmt: skip
    number = repr(module_points.cell_points(task, 20.0))
    one.outputs = [nbformat.v4.new_output("execute_result", {"text/plain": number})]
    assert determine_grade(one) == (points, 20.0)


@pytest.mark.parametrize("odd", [math.nan, math.inf, -3.0])
def test_no_odd_number_becomes_full_marks(odd: float) -> None:
    class Odd:
        points, max_points = odd, 20.0

    assert module_points.cell_points(Odd(), 20.0) == 0.0  # type: ignore[arg-type]


def test_the_reason_of_a_failure_is_said(
    klass: Class, results: dict[str, Graded], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object, **options: object) -> None:
        raise LabError("the moon is full; wait for it to wane.")

    monkeypatch.setattr(module_points, "grade_submission", broken)
    [one] = autograde(klass.course, LAB, ["pack-only"], again=True)
    assert one.failed
    assert one.note == "not graded: the moon is full; wait for it to wane."
    assert _line(one).endswith("the moon is full; wait for it to wane.")
    assert "/110" not in _line(one)
    assert reason("nothing of use") == "nbgrader gave no reason"
    assert reason("x\n    a.b.KeyError: 'k'\n    ") == "KeyError: 'k'"


def test_two_autogrades_of_a_class_do_not_meet(klass: Class, results: dict[str, Graded]) -> None:
    with klass.course.alone():
        done = klass.run("grader", "autograde", "01", code=2)
    assert "another autograde is at work" in done.stdout
    assert "Traceback" not in done.stderr
    with klass.course.alone():  # it was given back
        pass


def test_a_server_that_has_graded_keeps_nobody_out(klass: Class, results: dict) -> None:
    """Formgrader's own button grades in Jupyter's process, which lives on."""
    Journal(klass.folder / "results.jsonl").close()  # LabError if this process still had it


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [("grading.toml", "[late]\nshoes = 2\n", "unknown key of .late. 'shoes'"),
     (".course-secret", "short", "shorter than 16 bytes")],
)  # fmt: skip
def test_a_wrong_file_of_the_class_is_told_once(
    klass: Class, results: dict, file: str, text: str, says: str
) -> None:
    before = (klass.folder / file).read_text()
    (klass.folder / file).write_text(text)
    try:
        with pytest.raises(LabError, match=says):
            next(autograde(klass.course, LAB, ["ada"], again=True))
    finally:
        (klass.folder / file).write_text(before)


def test_what_is_missing_in_a_pack_is_on_the_students_line(results: dict[str, Graded]) -> None:
    assert "no Python file of lab01" in results["no-pack"].note
    assert results["ada"].note == ""


def test_settings_that_do_not_load_are_refused(tmp_path: Path) -> None:
    from grader.classroom.class_folder import SETTINGS as FILE
    from grader.classroom.class_folder import open_course

    (tmp_path / FILE).write_text("c = get_config()\n")
    with pytest.raises(LabError, match="run with your own rights"):
        _ = open_course(tmp_path).api
    (tmp_path / FILE).write_text("c = get_config(\n")
    with pytest.raises(LabError, match="cannot be used"):
        _ = open_course(tmp_path).api
    with pytest.raises(LabError, match="python -m grader classroom"):
        open_course(tmp_path / "nowhere")
