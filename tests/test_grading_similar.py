"""`grader similar`: copies are found through new names and moved functions, right ones are not."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from grader.authoring import variants
from grader.course.lab_toml import Lab, find_lab
from grader.grading.class_submissions import discover
from grader.grading.similar import REFERENCE, Pair, chance, page, pairs, solutions

ALIKE, APART = 0.8, 0.65  # a copy, whatever was done to it; right solutions by two hands


class Renamed(ast.NodeTransformer):
    """Every name that a function binds gets another one."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if isinstance(node.ctx, ast.Store) or node.id in self.own:
            self.own.add(node.id)
            node.id = f"their_{node.id}"
        return node

    def __init__(self) -> None:
        self.own: set[str] = set()


def turned_round(source: str) -> str:
    """The same with its functions and classes in another order."""
    tree = ast.parse(source)
    defined = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    others = [node for node in tree.body if node not in defined]
    return ast.unparse(ast.Module([*others, *reversed(defined)], []))


@pytest.fixture(scope="module", params=["01", "05"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Pair]:
    lab, root = find_lab(request.param), tmp_path_factory.mktemp("class")
    first, second = variants.kept(lab)[:2]
    for name, patch in {"ada": first, "bob": second, "cyd": first, "dan": first}.items():
        variants.write(patch, lab, root / name / "nanovllm")
    for path in (root / "cyd").rglob("*.py"):
        path.write_text(ast.unparse(Renamed().visit(ast.parse(path.read_text()))))
    for path in (root / "dan").rglob("*.py"):
        path.write_text(turned_round(path.read_text()))
    pasted(lab, root / "eve")
    (root / "fay.zip").write_bytes(b"no zip")
    return list(pairs(solutions(discover(root), lab)))


def pasted(lab: Lab, folder: Path) -> None:
    """The reference with other comments."""
    for path in lab.reference.glob("*.py"):
        target = folder / "nanovllm" / lab.package / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("# all mine\n" + ast.unparse(ast.parse(path.read_text())))


def share(found: list[Pair], *names: str) -> float:
    return max(
        (pair.share for pair in found if {pair.one.name, pair.two.name} == {*names}), default=0
    )


def test_copies_are_found(found: list[Pair]) -> None:
    copies = [("ada", "cyd"), ("ada", "dan"), ("cyd", "dan"), ("eve", REFERENCE)]
    assert {names: share(found, *names) > ALIKE for names in copies} == dict.fromkeys(copies, True)


def test_right_solutions_by_different_hands_are_not_alike(found: list[Pair]) -> None:
    right = [("ada", "bob"), ("ada", REFERENCE), ("bob", REFERENCE), ("bob", "eve")]
    assert {names: share(found, *names) < APART for names in right} == dict.fromkeys(right, True)
    assert chance(found) < APART


def test_the_page_shows_pairs_with_a_student_and_what_they_share(found: list[Pair]) -> None:
    shown = page(found, find_lab("05"), most=3)
    assert shown.count("<details>") == 3
    assert shown.count("<mark>") >= 6
    assert "eve" in shown or "cyd" in shown
