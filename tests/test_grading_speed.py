"""What makes a class quick to grade must change no verdict."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest
import torch

from benchmarks.check_time import PARTS
from benchmarks.grading_class import write_class
from benchmarks.grading_scale import own_times
from grader.checks import observation_json
from grader.checks.markers import collect_checks
from grader.course.lab_toml import CatalogError, find_lab, read_lab
from grader.course.paths import ROOT
from grader.grading import Limits, submission
from grader.sandbox import bytecode_cache, job_checks, job_scenarios


def test_a_lab_is_read_again_when_its_file_has_changed(tmp_path: Path) -> None:
    path = Path(shutil.copy(find_lab("01").folder / "lab.toml", tmp_path))
    first = read_lab(tmp_path)
    assert read_lab(tmp_path) is first
    path.write_text(path.read_text("utf-8").replace(first.title, "Another title"), "utf-8")
    os.utime(path, ns=(0, 0))
    assert read_lab(tmp_path).title == "Another title"
    path.unlink()
    with pytest.raises(CatalogError, match="missing"):
        read_lab(tmp_path)


@pytest.mark.parametrize(
    ("observed", "agrees"),
    [
        ([1.0, True, torch.ones(2)], True),
        ([1.0 + 1e-12, True, torch.ones(2)], True),  # other bits, within the tolerance
        ([1.0, 0, torch.ones(2)], False),
        ([1.0, True, torch.zeros(2)], False),
    ],
)
def test_equal_bits_are_agreed_on_and_others_are_compared(observed: list, agrees: bool) -> None:
    expected = observation_json.encode([1.0, True, torch.ones(2)])
    sent = json.loads(json.dumps(observation_json.encode(observed)))
    assert job_scenarios._compare(sent, expected)["agrees"] is agrees


def test_what_cannot_be_written_as_json_does_not_agree() -> None:
    deep: list = []
    for _ in range(sys.getrecursionlimit() * 100):
        deep = [deep]
    assert job_scenarios._compare(deep, [])["agrees"] is False


def test_plugins_of_this_machine_take_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict = {}
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "")
    monkeypatch.setattr(pytest, "main", lambda options, plugins: seen.update(options=options))
    job_checks.run({"items": ["labs/lab01/test_1_train.py::test_x"]}, lambda event: None)
    assert os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] == "1"
    assert {"pytest_timeout", "_hypothesis_pytestplugin"} <= set(seen["options"])


def test_kept_byte_code_is_that_of_the_file_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kept.py"
    path.write_text("x = 1\n", "utf-8")
    kept = compile("x = 'kept'", str(path), "exec")
    monkeypatch.setitem(bytecode_cache._modules, str(path), (bytecode_cache._stamp(path), kept))
    monkeypatch.setitem(
        bytecode_cache._checks, str(path), (bytecode_cache._stamp(path), (b"", kept))
    )
    get_code = bytecode_cache._get_code(lambda loader, name: "compiled")
    rewrite_test = bytecode_cache._rewritten(lambda file, config: "rewritten")
    loader = SourceFileLoader("kept", str(path))
    assert (get_code(loader, "kept"), rewrite_test(path, None)) == (kept, (b"", kept))
    path.write_text("x = 22\n", "utf-8")
    assert (get_code(loader, "kept"), rewrite_test(path, None)) == ("compiled", "rewritten")


def test_byte_code_is_kept_of_what_the_box_shows_and_of_nothing_else() -> None:
    code = (
        "from grader.course.lab_toml import find_lab\n"
        "from grader.sandbox import bytecode_cache as b\n"
        "b.remember(find_lab('02')); print(*b._modules, *b._checks, sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    kept = {str(Path(line).relative_to(ROOT)) for line in done.stdout.splitlines()}
    assert "solutions/nanovllm/tokenization/bpe.py" in kept  # of a lower lab
    assert {path for path in kept if path.startswith("labs/")} == {
        str(path.relative_to(ROOT)) for path in find_lab("02").folder.glob("test_*.py")
    }
    others = ("nanovllm/model", "nanovllm/generation", "hidden", "mistakes", "notebooks")
    assert not [path for path in kept if path.startswith(tuple(f"solutions/{o}" for o in others))]


def test_the_synthetic_class_has_no_two_alike(tmp_path: Path) -> None:
    lab = find_lab("01")
    students = write_class(lab, 20, tmp_path / "class")
    found = [
        submission.read(tmp_path / "class" / f"{student}.zip", lab, Limits())
        for student in students
    ]
    assert all(not one.problem for one in found)
    assert len({tuple(sorted(one.files.items())) for one in found}) == 20


@pytest.mark.proof
def test_the_checks_own_time_is_measured_of_every_kind_of_submission(tmp_path: Path) -> None:
    """What the record of a class is compared with; it goes past the grader, to its jobs."""
    lab, home = find_lab("01"), tmp_path / "class"
    students = write_class(lab, 10, home)
    found = own_times(lab, home, students, 2, "00" * 32, tmp_path / "own")
    assert all(min(one[part] for part in PARTS) > 0 for one in found)
    passed = [one["passed"] for one in found]
    assert max(passed) == len(collect_checks(lab)) and min(passed) < max(passed)
