"""Proof of the checks: stubs fail, the reference passes, known mistakes are caught and named."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from grader.authoring import mistakes, mistakes_json
from grader.checks import hints_file
from grader.checks.markers import collect_checks
from grader.checks.run_checks import Record, Run, fresh_processes, run_checks
from grader.course import checks_json
from grader.course.lab_toml import Lab
from grader.course.outcome import Status
from grader.course.paths import ROOT
from grader.course.stubs import BEGIN, functions
from tests.proof import parts

SEEDS = range(20)


def test_untouched_stubs_fail_with_the_tasks_own_error(lab: Lab, stub_package: Path) -> None:
    [record] = fresh_processes(run_checks, [Run(lab.key, stub_package)], 1)
    assert {o.check for o in record.outcomes} == {check.id for check in collect_checks(lab)}
    for outcome in record.outcomes:
        own = f"{lab.key} task {outcome.task}: "
        behind = {f"blocked by task {task}" for task in all_needs(lab, outcome.task)}
        fine = (
            outcome.reason.startswith(own)
            if outcome.status is Status.TODO
            else (outcome.status is Status.BLOCKED and outcome.reason in behind)
        )
        assert fine, f"{outcome.check}: {outcome.status} {outcome.reason}"


def all_needs(lab: Lab, task: int) -> set[int]:
    """The tasks that a task needs, and those that these need."""
    direct = lab.task(task).needs
    return {*direct, *(far for near in direct for far in all_needs(lab, near))}


@pytest.mark.proof
def test_reference_passes_for_every_seed(lab: Lab) -> None:
    for record in fresh_processes(run_checks, [Run(lab.key, seed=seed) for seed in SEEDS]):
        passes(record)


def passes(record: Record) -> None:
    """Every check of a run has passed, and all points are there."""
    wrong = [f"{o.check}: {o.reason}" for o in record.outcomes if o.status is not Status.PASSED]
    assert not wrong, "\n".join(wrong) + record.printed
    assert sum(outcome.earned for outcome in record.outcomes) == 100


@pytest.mark.proof
def test_shape_annotations_hold_in_the_checks(lab: Lab) -> None:
    checks = ["-p", "tests.shape_checks", str(lab.folder), "--reference", "-q"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *checks], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:]


def recorded(lab: Lab) -> dict[str, list[dict]]:
    """The observations that the builder recorded when it planted every mistake of the bank."""
    path = lab.folder / "mistakes.json"
    return json.loads(path.read_text(encoding="utf-8"))["observations"]


def test_every_known_mistake_is_caught_and_named(lab: Lab) -> None:
    """By the builder's record of planting all of them, which is of the files as they are now."""
    assert mistakes_json.fresh(lab), f"run `python -m grader build {lab.number:02d}`"
    entries = recorded(lab)
    known = mistakes.bank(lab)
    assert len(known) >= 12
    assert len({mistake.name for mistake in known}) == len(known)
    for mistake in known:
        seen = {
            check: {"at": entry["at"], "seen": entry["seen"]}
            for check, found in entries.items()
            for entry in found
            if entry["name"] == mistake.name
        }
        assert seen, f"no check of its task notices {mistake.name}"
        finding = mistakes.Finding(mistake, seen)
        assert mistakes.named_by(finding, entries), f"no card names {mistake.name}"


@pytest.mark.few(3)
def test_some_planted_mistakes_are_recognised_again(lab: Lab) -> None:
    are_recognised(lab, mistakes.bank(lab)[::20])


@pytest.mark.proof
def test_planted_mistakes_are_recognised_again(lab: Lab) -> None:
    are_recognised(lab, mistakes.bank(lab))


def are_recognised(lab: Lab, planted: list[mistakes.Mistake]) -> None:
    """Planted anew: the record is not trusted, it is repeated."""
    for finding in mistakes.findings(lab, planted):
        assert finding.observations, f"no check of its task notices {finding.mistake.name}"
        named = mistakes.named_by(finding, recorded(lab))
        assert named, f"no card names {finding.mistake.name}"


@pytest.mark.few(4)
def test_a_card_names_the_mistake(lab: Lab, tmp_path: Path) -> None:
    mistake = mistakes.bank(lab)[0]
    mistakes.plant(mistake, lab, tmp_path)
    [record] = fresh_processes(run_checks, [Run(lab.key, tmp_path, f"task{mistake.task}")], 1)
    assert mistake.name in {outcome.mistake for outcome in record.outcomes}
    assert " ".join(mistake.says.split())[:40] in " ".join(re.sub("│", "", record.printed).split())


def test_reference_passes_and_its_checks_run_every_solution(lab: Lab, tmp_path: Path) -> None:
    """Every body that a student writes says so when it runs, and under which check."""
    notes = tmp_path / "notes"
    plant_notes(lab, tmp_path, notes)
    [record] = fresh_processes(run_checks, [Run(lab.key, tmp_path)], 1)
    passes(record)
    task_of_check = {check.id: check.task for check in collect_checks(lab)}
    ran = set()
    for line in notes.read_text(encoding="utf-8").splitlines():
        symbol, _, check = line.partition(" ")
        ran.add((symbol, task_of_check.get(check)))
    for symbol, task in lab.task_of_symbol.items():
        module, _, name = symbol.partition(":")
        if has_body(lab.reference / f"{module}.py", name):
            assert (symbol, task.id) in ran, f"no check of {lab.key} task {task.id} runs {symbol}"


def has_body(path: Path, name: str) -> bool:
    """Whether something of this name runs: a function, or a class that has some."""
    found = {name for name, _ in functions(path.read_text(encoding="utf-8"))}
    return any(one == name or one.rpartition(".")[0] == name for one in found)


def plant_notes(lab: Lab, package: Path, notes: Path) -> None:
    """Copy the reference with a note as the first line of every solution.

    A class notes in each of its methods; what has no body, as a variable, is not asked for.
    """
    folder = package / lab.package
    folder.mkdir(parents=True)
    for path in lab.reference.glob("*.py"):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        places = {}
        for name, node in functions("".join(lines)):
            owners = [name, name.rpartition(".")[0]]
            symbol = next(
                (s for o in owners if (s := f"{path.stem}:{o}") in lab.task_of_symbol), ""
            )
            if symbol:
                marks = [i for i in range(node.lineno - 1, node.end_lineno) if BEGIN in lines[i]]
                docstring = ast.get_docstring(node) is not None and len(node.body) > 1
                first = node.body[1 if docstring else 0]
                places[marks[0] if marks else first.lineno - 1] = symbol, bool(marks)
        for at, (symbol, is_mark) in sorted(places.items(), reverse=True):
            indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
            call = f'{indent}__import__("tests.hits").hits.note("{symbol}", {str(notes)!r})\n'
            lines[at : at + is_mark] = [call]
        (folder / path.name).write_text("".join(lines), encoding="utf-8")


def test_points_and_tasks_agree(lab: Lab) -> None:
    checks = collect_checks(lab)
    for task in lab.tasks:
        assert sum(check.points for check in checks if check.task == task.id) == task.points
    assert lab.points == 100
    assert {check.task for check in checks} == {task.id for task in lab.tasks}
    for name, hints in hints_file.read(lab).items():
        assert all(len(hint) > 10 for hint in hints), name
        assert len(set(hints)) == 3, f"{name}: three different hints"


@pytest.mark.parametrize("change", ["edit", "delete", "add"])
def test_changed_checks_are_noticed(lab: Lab, change: str, tmp_path: Path) -> None:
    copy = tmp_path / lab.key
    shutil.copytree(lab.folder, copy)
    lab = replace(lab, home=tmp_path)
    assert checks_json.problems(lab) == []
    victim = sorted(copy.glob("test_*.py"))[0]
    if change == "edit":
        victim.write_text(victim.read_text() + "\n# nothing\n")
    elif change == "delete":
        victim.unlink()
    else:
        victim = copy / "test_9_mine.py"
        victim.write_text("def test_free_points(): pass\n")
    [problem] = checks_json.problems(lab)
    assert victim.name in problem


def test_every_test_that_is_long_belongs_to_a_part_of_the_proof() -> None:
    marked = {path.name for path in Path(__file__).parent.glob("test_*.py")
              if re.search(r"mark\.(proof|few)", path.read_text(encoding="utf-8"))}  # fmt: skip
    run = {Path(test).name for part in parts().values() for test in part.tests}
    assert marked == run
