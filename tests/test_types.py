"""Shapes hold, the linter sees undefined names, and editors find `nanovllm` where it runs from."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from grader.course.paths import ROOT
from grader.release.contents import contents
from grader.release.lab_selection import select
from grader.release.write_release import write_release
from tests.language_server import definitions

BIN = Path(sys.executable).parent
WRITTEN = ("pyproject.toml", "nanovllm", "labs", "grader", "models", "solutions/nanovllm")
ASKING = """
from nanovllm import LLM
from nanovllm.generation.loop import Generation
from nanovllm.model.rope import apply_rope
from nanovllm.tokenization.tokenizer import Tokenizer
"""
UNDEFINED = """
class Server:
    def _said(self) -> str:
        return undefined_name

    def wait(self) -> str:
        return self.said()
"""


def test_a_wrong_shape_is_noticed() -> None:
    """Or the proof that shapes hold in the checks of every lab would prove nothing."""
    call = "import tests.shape_checks, torch; from nanovllm.model.norms import rms_norm; "
    call += "rms_norm(torch.ones(2, 4), torch.ones(3), 1e-6)"
    done = subprocess.run(
        [sys.executable, "-c", call], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "TypeCheckError" in done.stderr
    assert "parameter 'weight'" in done.stderr


@pytest.fixture
def course(tmp_path: Path) -> Path:
    """This repository, as far as an import can lead."""
    for name in WRITTEN:
        source, copy = ROOT / name, tmp_path / name
        if source.is_file():
            shutil.copy(source, copy)
        else:
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for started in (path for path in (tmp_path / "nanovllm").iterdir() if path.is_dir()):
        shutil.rmtree(started)
    return tmp_path


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A students' repository with the reference of the first two of three labs."""
    write_release(contents(select("01-03", "01,02")), tmp_path / "students", lambda name: False)
    return tmp_path / "students"


def start(root: Path, lab: str) -> None:
    dropped = ("NANOVLLM_CODE", "NANOVLLM_MINE", "NANOVLLM_STATE")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    subprocess.run(
        [sys.executable, "-m", "grader.student.lab_command", "start", lab],
        cwd=root,
        env=kept | {"PYTHONPATH": str(root)},
        capture_output=True,
        check=True,
    )


def found(root: Path) -> dict[str, str]:
    """Where an editor goes from the names of a file in the course's folder."""
    (root / "asking.py").write_text(ASKING)
    names = [line.split()[-1] for line in ASKING.strip().splitlines()]
    return definitions(root, "asking.py", names)


@pytest.mark.parametrize("kind", ["course", "release"])
def test_editors_find_the_students_file_once_a_lab_is_started(
    kind: str, request: pytest.FixtureRequest
) -> None:
    root = request.getfixturevalue(kind)
    before = found(root)
    reference = "solutions/nanovllm"
    assert before["LLM"] == f"{reference}/llm/llm.py"
    assert before["apply_rope"] == f"{reference}/model/rope.py"
    assert before["Tokenizer"] == f"{reference}/tokenization/tokenizer.py"
    # A release has no reference of an open lab.
    assert before["Generation"] == (f"{reference}/generation/loop.py" if kind == "course" else "")
    start(root, "02")
    after = found(root)
    assert after == before | {"apply_rope": "nanovllm/model/rope.py"}
    start(root, "03")
    assert found(root) == after | {"Generation": "nanovllm/generation/loop.py"}


@pytest.mark.parametrize("folder", ["solutions/nanovllm/paging", "grader/sandbox"])
def test_the_type_checker_sees_undefined_names(course: Path, folder: str) -> None:
    (course / folder / "planted.py").write_text(UNDEFINED)
    done = subprocess.run(
        [BIN / "basedpyright", "--outputjson", f"{folder}/planted.py"],
        cwd=course,
        capture_output=True,
        text=True,
        check=False,
    )
    rules = {one["rule"] for one in json.loads(done.stdout)["generalDiagnostics"]}
    assert rules == {"reportUndefinedVariable", "reportAttributeAccessIssue"}
