"""What makes the record of a planted mistake stale, and what does not; where one can be planted."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from grader.authoring import mistakes_json
from grader.authoring.mistakes import Finding, Mistake, MistakeError, plant, table
from grader.course import lab_toml
from grader.course.lab_toml import Lab, find_lab
from grader.course.paths import LABS, ROOT


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of lab 02's folder."""
    return Path(shutil.copytree(LABS / "lab02", tmp_path / "lab02"))


@pytest.mark.parametrize(
    ("old", "new", "stays"),
    [
        ('title="', 'title="Another: ', True),  # the marker
        ("from grader import", "from grader.checks import", True),  # where a module lies
        ("import torch\n", "import torch  # why\n", True),
        ("import torch\n", "import torch\n\nONE = 1\n", False),
        ("import torch\n", "import torch\n\n# why\n", True),  # all functions a line lower
        ("\n    expect(", "\n    # why\n    expect(", False),  # one expectation a line lower
    ],
)
def test_what_a_record_depends_on(copy: Path, old: str, new: str, stays: bool) -> None:
    lab = replace(find_lab(2), home=copy.parent)
    before = mistakes_json.mistake_digests(lab)
    check = sorted(copy.glob("test_1_*.py"))[0]
    text = check.read_text(encoding="utf-8")
    assert old in text
    check.write_text(text.replace(old, new, 1), encoding="utf-8")
    task1 = {m.name for m in mistakes_json.mistakes.bank(lab) if m.task == 1}
    after = mistakes_json.mistake_digests(lab)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == (set() if stays else task1)


def test_a_record_depends_on_recorded_runs(tmp_path: Path) -> None:
    home = Path(shutil.copytree(LABS / "lab04", tmp_path / "lab04")).parent
    lab = replace(find_lab(4), home=home)
    before = mistakes_json.mistake_digests(lab)
    (home / "lab04" / "recorded.json").write_text("{}", encoding="utf-8")
    assert not set(before.values()) & set(mistakes_json.mistake_digests(lab).values())


def test_a_record_depends_on_what_helpers_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """`from grader.checks import kernel_calls`, and kernel_text, which compiled imports."""
    read: list[str] = []
    monkeypatch.setattr(mistakes_json, "_code", lambda path: read.append(path.stem) or "")
    mistakes_json._with_helpers(LABS / "lab06" / "test_2_rms_norm.py")
    assert {"kernel_calls", "compiled", "kernel_text", "guard_regions"} <= set(read)


def test_a_run_that_could_not_be_repeated_is_no_record() -> None:
    mistake = Mistake("m", 1, "a:f", "x", "y", "You add twice.")
    flaky = {"at": "raised", "seen": {"raises": "FlakyStrategyDefinition", "hash": "1"}}
    found = {"test_a.py::test_x": flaky, "test_a.py::test_y": {"at": "f+1", "seen": {"hash": "2"}}}
    assert list(table([Finding(mistake, found)])) == ["test_a.py::test_y"]


SOURCE = '''"""A file."""

### BEGIN SOLUTION
LIMIT = 3


def pick(n):
    return _helper(n)


def _helper(n):
    return n + LIMIT


class Box:
    size = 4
### END SOLUTION
'''


@pytest.mark.parametrize(
    ("symbol", "old", "new"),
    [
        ("a:pick", "return _helper(n)", "return _helper(-n)"),
        ("a:_helper", "n + LIMIT", "n - LIMIT"),
        ("a:Box", "size = 4", "size = 5"),
        ("a:", "LIMIT = 3", "LIMIT = 4"),
    ],
)
def test_a_mistake_in_a_file_that_starts_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, symbol: str, old: str, new: str
) -> None:
    home = tmp_path / "reference"
    (home / "model").mkdir(parents=True)
    (home / "model" / "a.py").write_text(SOURCE)
    monkeypatch.setattr(lab_toml, "REFERENCE", home)
    lab = Lab(2, "x", "model", "a.py", ())
    plant(Mistake("m", 1, symbol, old, new, "says"), lab, tmp_path / "planted")
    assert (tmp_path / "planted" / "model" / "a.py").read_text() == SOURCE.replace(old, new)
    with pytest.raises(MistakeError, match="must be there once"):
        plant(Mistake("m", 1, symbol, "nothing", "x", "says"), lab, tmp_path / "other")


@pytest.mark.proof
def test_draws_from_the_global_generators_are_the_same_in_every_run(tmp_path: Path) -> None:
    """A process starts with numbers of its own; a card must know the mistake all the same."""
    wrong = Mistake(
        "draw-global",
        2,
        "chain:draw",
        "u = keys.uniform(seeds, positions, logits.shape[-1])",
        "import random; import numpy as np; "
        "u = torch.rand(logits.shape) * random.random() + torch.tensor(np.random.rand(1000))",
        "",
    )
    plant(wrong, find_lab(3), tmp_path)
    seen = []
    for number in range(2):
        record = tmp_path / f"{number}.json"
        words = [sys.executable, "-m", "pytest", "labs/lab03", "-q", "-k", "test_draw_key"]
        mine = os.environ | {"NANOVLLM_MINE": str(tmp_path)}
        subprocess.run([*words, f"--record={record}"], cwd=ROOT, env=mine, capture_output=True)
        seen.append(json.loads(record.read_text(encoding="utf-8"))["observations"])
    assert seen[0]
    assert seen[0] == seen[1]
