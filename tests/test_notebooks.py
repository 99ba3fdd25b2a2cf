"""Notebooks run top to bottom, with the reference and with nothing but stubs."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from grader.course.lab_toml import Lab
from grader.course.paths import NOTEBOOK_SOURCES, NOTEBOOKS
from grader.student.notebook import needs


def execute(path: Path, checks: bool = True) -> nbformat.NotebookNode:
    """Run a notebook where Jupyter runs it, in its own folder; its cells of checks start pytest."""
    notebook = nbformat.read(path, as_version=4)
    if not checks:
        notebook.cells = [c for c in notebook.cells if not c.source.startswith("check_task(")]
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": path.parent}}
    ).execute()
    return notebook


def outputs(notebook: nbformat.NotebookNode) -> list:
    return [out for cell in notebook.cells for out in cell.get("outputs", [])]


@pytest.mark.parametrize("checks", [False, pytest.param(True, marks=pytest.mark.proof)])
@pytest.mark.few(1)
def test_instructors_version_runs(lab: Lab, checks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANOVLLM_CODE", "reference")
    done = execute(NOTEBOOK_SOURCES / lab.key / f"{lab.key}.ipynb", checks)
    pictures = [out for out in outputs(done) if "image/png" in out.get("data", {})]
    assert len(pictures) >= 3
    text = "".join(out.get("text", "") for out in outputs(done))
    assert "This cell needs" not in text


@pytest.mark.few(1)
def test_students_version_runs_with_no_experiment(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All the lab's code is there, and none of what is written in the notebook itself."""
    monkeypatch.setenv("NANOVLLM_CODE", "reference")
    execute(NOTEBOOKS / lab.key / f"{lab.key}.ipynb", checks=False)


@pytest.mark.proof
def test_students_version_runs_on_stubs(
    lab: Lab, stub_package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NANOVLLM_CODE", lab.key)
    monkeypatch.setenv("NANOVLLM_MINE", str(stub_package))
    monkeypatch.setenv("NANOVLLM_STATE", os.fspath(stub_package / "state"))
    done = execute(NOTEBOOKS / lab.key / f"{lab.key}.ipynb")
    text = "".join(out.get("text", "") for out in outputs(done))
    assert "This cell needs" in text


def test_every_picture_is_predicted_first(lab: Lab) -> None:
    """The text of its section before a cell that draws asks for a guess."""
    drawing = drawing_functions(lab)
    said = ""
    pictures = 0
    for cell in nbformat.read(NOTEBOOKS / lab.key / f"{lab.key}.ipynb", as_version=4).cells:
        if cell.cell_type == "markdown":
            said = cell.source if "## " in cell.source else said + cell.source
        elif drawing & set(re.findall(r"(?:\bplots\.)?(\w+)\(", cell.source)):
            pictures += 1
            assert "**Predict" in said, f"{said[:80]}... asks for no guess"
    assert pictures >= 5


def drawing_functions(lab: Lab) -> set[str]:
    """Those of the lab's plots that return nothing, and what shows a picture without them."""
    path = lab.folder / "plots.py"
    made = ast.parse(path.read_text()).body if path.exists() else []
    return {"show", "movable"} | {
        node.name
        for node in made
        if isinstance(node, ast.FunctionDef)
        and isinstance(node.returns, ast.Constant)
        and not node.name.startswith("_")
    }


def test_every_task_has_an_experiment_on_the_students_own_code(lab: Lab) -> None:
    text = (NOTEBOOK_SOURCES / f"{lab.key}.py").read_text(encoding="utf-8")
    used = {
        int(task)
        for tasks in re.findall(rf'with needs\("{lab.number:02d}", ([\d, ]+)\)', text)
        for task in tasks.split(",")
    }
    assert used == {task.id for task in lab.tasks}


def test_questions_reach_students_and_answers_do_not(lab: Lab) -> None:
    """A question is a locked cell of its own: nbgrader empties the cell that takes the answer."""
    cells = nbformat.read(NOTEBOOKS / lab.key / f"{lab.key}.ipynb", as_version=4).cells
    grading = [cell.metadata.get("nbgrader", {}) for cell in cells]
    questions = [n for n, entry in enumerate(grading) if entry.get("grade") and entry["solution"]]
    assert questions
    for number in questions:
        assert cells[number].source == "YOUR ANSWER HERE"
        assert grading[number - 1].get("locked") is True
        points = grading[number]["points"]
        assert f"({points:g} points).**" in cells[number - 1].source


@pytest.fixture(scope="module")
def nbgrader_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A class of all labs: the first assignment pays for its gradebook."""
    return tmp_path_factory.mktemp("class")


def test_student_notebooks_are_what_nbgrader_generates(lab: Lab, nbgrader_folder: Path) -> None:
    """Byte for byte, so that a notebook from the repository and one from the exchange agree."""
    from nbgrader.apps import NbGraderAPI
    from traitlets.config import Config

    config = Config()
    config.CourseDirectory.root = str(nbgrader_folder)
    config.CourseDirectory.source_directory = str(NOTEBOOK_SOURCES)
    done = NbGraderAPI(config=config).generate_assignment(lab.key)
    assert done["success"], done
    made = nbgrader_folder / "release" / lab.key / f"{lab.key}.ipynb"
    assert made.read_bytes() == (NOTEBOOKS / lab.key / f"{lab.key}.ipynb").read_bytes()


def test_students_version_holds_no_outputs_and_a_manual_question(lab: Lab) -> None:
    notebook = nbformat.read(NOTEBOOKS / lab.key / f"{lab.key}.ipynb", as_version=4)
    assert outputs(notebook) == []
    graded = [c.metadata.nbgrader for c in notebook.cells if c.metadata.get("nbgrader", {})]
    ids = [entry["grade_id"] for entry in graded]
    assert len(ids) == len(set(ids))
    tasks = {f"{lab.key}-task-{task.id}": task.points for task in lab.tasks}
    assert {e["grade_id"]: e["points"] for e in graded if e["grade_id"] in tasks} == tasks
    assert any(e["grade"] and e["solution"] for e in graded), "a manually graded question"


@pytest.mark.parametrize("text", ["lab04 task 2: x", "lab04 task 3: x", "lab02 task 7: x"])
def test_a_cell_waits_for_its_tasks_and_for_lower_labs(text: str, capsys) -> None:
    with needs("04", 2, 3):
        raise NotImplementedError(text)
    said = f"This cell needs {text}. Write it, then run the cell again.\n"
    assert capsys.readouterr().out == said


@pytest.mark.parametrize("text", ["lab04 task 1: x", "lab05 task 2: x", "not a task"])
def test_a_cell_does_not_hide_what_it_does_not_name(text: str) -> None:
    with pytest.raises(NotImplementedError, match=text), needs("04", 2, 3):
        raise NotImplementedError(text)
