"""Where `import nanovllm.<lab>` comes from in each of the four modes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from grader.course.lab_toml import find_lab
from grader.course.paths import ROOT

WHERE = """
import importlib, sys
for name in sys.argv[1:]:
    print(importlib.import_module(f"nanovllm.{name}").__file__)
"""


def where(mine: Path, code: str, *packages: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NANOVLLM_MINE": str(mine), "NANOVLLM_CODE": code}
    return subprocess.run(
        [sys.executable, "-c", WHERE, *packages],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def two_started(tmp_path: Path) -> Path:
    """A package folder in which labs 01 and 02 are there, 03 is not."""
    for number in (1, 2):
        lab = find_lab(number)
        shutil.copytree(lab.reference, tmp_path / lab.package)
    (tmp_path / "generation" / "__pycache__").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(
    ("code", "mine"),
    [
        ("", {"tokenization", "model"}),
        ("reference", set()),
        ("lab01", {"tokenization"}),
        ("lab02", {"model"}),
    ],
)
def test_modes_choose(two_started: Path, code: str, mine: set[str]) -> None:
    packages = ("tokenization", "model", "generation")
    done = where(two_started, code, *packages)
    assert done.returncode == 0, done.stderr
    for package, path in zip(packages, done.stdout.split(), strict=True):
        home = two_started if package in mine else ROOT / "solutions" / "nanovllm"
        assert Path(path).is_relative_to(home), f"{package} came from {path}"


@pytest.mark.parametrize("code", ["mine", "lab03"])
def test_own_code_only_says_what_is_missing(two_started: Path, code: str) -> None:
    done = where(two_started, code, "tokenization", "generation")
    assert done.returncode == 1
    assert "lab03 is not started" in done.stderr
    assert "`lab start lab03`" in done.stderr


def test_mine_finds_the_composition_root(two_started: Path) -> None:
    done = where(two_started, "mine", "outputs", "tokenization")
    assert done.returncode == 0, done.stderr


def test_unknown_mode_is_refused(tmp_path: Path) -> None:
    done = where(tmp_path, "refrence", "outputs")
    assert done.returncode == 1
    assert "NANOVLLM_CODE='refrence' is not known; use reference, mine, one lab" in done.stderr


def test_assembly_knows_every_lab() -> None:
    from grader.course.lab_toml import labs

    text = (ROOT / "nanovllm" / "__init__.py").read_text(encoding="utf-8")
    for lab in labs():
        assert f'"{lab.key}": "{lab.package}"' in text
