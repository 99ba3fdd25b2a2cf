"""Notebooks run top to bottom, with the reference and with nothing but stubs."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from grader.catalog import Lab
from grader.paths import NOTEBOOK_SOURCES, NOTEBOOKS, ROOT


def execute(path: Path) -> nbformat.NotebookNode:
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}}
    ).execute()
    return notebook


def outputs(notebook: nbformat.NotebookNode) -> list:
    return [out for cell in notebook.cells for out in cell.get("outputs", [])]


def test_instructors_version_runs(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANOVLLM_CODE", "reference")
    done = execute(NOTEBOOK_SOURCES / lab.key / f"{lab.key}.ipynb")
    pictures = [out for out in outputs(done) if "image/png" in out.get("data", {})]
    assert len(pictures) >= 3
    text = "".join(out.get("text", "") for out in outputs(done))
    assert "This cell needs" not in text


def test_students_version_runs_on_stubs(
    lab: Lab, stub_package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NANOVLLM_CODE", lab.key)
    monkeypatch.setenv("NANOVLLM_MINE", str(stub_package))
    monkeypatch.setenv("NANOVLLM_STATE", os.fspath(stub_package / "state"))
    done = execute(NOTEBOOKS / lab.key / f"{lab.key}.ipynb")
    text = "".join(out.get("text", "") for out in outputs(done))
    assert "This cell needs" in text


def test_students_version_holds_no_outputs_and_a_manual_question(lab: Lab) -> None:
    notebook = nbformat.read(NOTEBOOKS / lab.key / f"{lab.key}.ipynb", as_version=4)
    assert outputs(notebook) == []
    graded = [c.metadata.nbgrader for c in notebook.cells if c.metadata.get("nbgrader", {})]
    ids = [entry["grade_id"] for entry in graded]
    assert len(ids) == len(set(ids))
    tasks = {f"{lab.key}-task-{task.id}": task.points for task in lab.tasks}
    assert {e["grade_id"]: e["points"] for e in graded if e["grade_id"] in tasks} == tasks
    assert any(e["grade"] and e["solution"] for e in graded), "a manually graded question"
