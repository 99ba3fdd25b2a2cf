"""`lab doctor`: says what is missing or wrong, and how to get it."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from grader.student import doctor
from grader.student.model_files import weights_problem
from tests.lab_course import make_course


def model(folder: Path, promised: int = 8, stored: int = 8) -> Path:
    """A model folder whose one weight file promises and stores so many bytes of data."""
    folder.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_text("{}")
    header = json.dumps(
        {"__metadata__": {}, "w": {"dtype": "F32", "shape": [2], "data_offsets": [0, promised]}}
    ).encode()
    (folder / "model.safetensors").write_bytes(
        struct.pack("<Q", len(header)) + header + bytes(stored)
    )
    return folder


def test_a_complete_model_is_fine(tmp_path: Path) -> None:
    assert weights_problem(model(tmp_path / "m")) == ""


def test_incomplete_models_are_told(tmp_path: Path) -> None:
    assert weights_problem(tmp_path / "none") == "missing"
    assert "bytes where" in weights_problem(model(tmp_path / "short", stored=7))
    folder = model(tmp_path / "m")
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    for text, says in (
        (b"version https://git-lfs", "Git LFS pointer"),
        (b"", "cut off"),
        (whole[:20], "cut off"),
        (whole[:8] + b"x" + whole[9:], "damaged header"),
    ):
        weights.write_bytes(text)
        assert says in weights_problem(folder)
    weights.unlink()
    assert "no weights" in weights_problem(folder)
    (folder / "config.json").write_text("{")
    assert weights_problem(folder) == "config.json cannot be read"


def test_every_finding_that_is_not_good_has_a_way_out(tmp_path: Path) -> None:
    course = make_course(tmp_path, started="1")
    (course.root / "requirements.txt").write_text(
        'numpy==0.0.1\nno-such-package==1.0\nelsewhere==1; sys_platform == "plan9"\n'
    )
    checks = course.root / "labs" / "lab01" / "test_1_add.py"
    checks.write_text("# edited\n")
    model(course.root / "models" / "target")
    done = course.lab("doctor")
    assert done.returncode == 1
    assert "0.0.1 wanted" in done.stdout
    assert "no-such-package" in done.stdout
    assert "elsewhere" not in done.stdout
    assert "test_1_add.py was edited" in done.stdout
    assert "✓ model target" in done.stdout
    assert "✗ model draft" in done.stdout
    assert "torch" in done.stdout
    lines = done.stdout.splitlines()
    for number, line in enumerate(lines):
        if line.startswith(("✗", "!")):
            assert "→" in lines[number + 1], line


def test_a_torch_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for probe, says in (
        ("raise OSError('libgomp is missing')", "libgomp"),
        ("import os; os.abort()", "exit code"),
        ("print('{')", "cannot be used"),
    ):
        monkeypatch.setattr(doctor, "PROBE", probe)
        (finding,) = doctor._torch()
        assert finding.level == doctor.BAD
        assert says in finding.found
        assert "pip install" in finding.way_out
