"""Mutants change what a student writes, nothing else, and are noticed or not."""

from __future__ import annotations

import ast

import pytest

from grader.authoring import mutants
from grader.authoring.mutants import Mutant, own_lines
from grader.course.lab_toml import Lab, find_lab
from grader.course.stubs import lab_stubs


@pytest.mark.few(4)
def test_only_lines_of_the_student_are_changed(lab: Lab) -> None:
    found = mutants.mutants(lab, lab.reference, most=12, seed=1)
    assert len(found) == 12 == len({mutant.key for mutant in found})
    stubs = lab_stubs(lab)
    for mutant in found:
        source = (lab.reference / mutant.file).read_text()
        assert mutant.line in own_lines(stubs[mutant.file], source)
        assert ast.dump(ast.parse(mutant.source)) != ast.dump(ast.parse(source))


@pytest.mark.proof
def test_mutants_are_noticed(lab: Lab) -> None:
    """97 of 100 by the checks, 99 with the scenarios, of those that change something."""
    made = mutants.mutants(lab, lab.reference, most=150, seed=0)
    found = [one for one in mutants.verdicts(lab, lab.reference, made) if not one.reason]
    missed = [one.mutant.key for one in found if not one.noticed]
    by_checks = sum(one.noticed == "checks" for one in found)
    assert len(missed) <= 0.01 * len(found), missed
    assert by_checks >= 0.97 * len(found), by_checks
    wrong = [one.mutant.key for one in found if one.named_wrongly]
    assert len(wrong) <= 0.02 * sum(bool(one.named) for one in found), wrong


def test_what_changes_nothing_is_not_noticed_and_what_does_is() -> None:
    lab = find_lab("02")
    source = (lab.reference / "norms.py").read_text()
    wrong = source.replace("mean_square + eps", "mean_square")
    assert wrong != source
    same = Mutant("norms.py", 1, "", "", source + "\n")
    made = [same, Mutant("norms.py", 23, "+ eps", "", wrong)]
    assert [verdict.noticed for verdict in mutants.verdicts(lab, lab.reference, made)] == [
        "",
        "checks",
    ]
