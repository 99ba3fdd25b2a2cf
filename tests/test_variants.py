"""Right solutions by other hands get every point, from the checks and from the scenarios."""

from __future__ import annotations

from pathlib import Path

import pytest

from grader.authoring import variants
from grader.course.lab_toml import Lab, find_lab, labs

KEPT = [(lab.key, path) for lab in labs() for path in variants.kept(lab)]


def test_a_right_variant_gets_every_point(lab: Lab) -> None:
    kept = variants.kept(lab)
    if not kept:
        pytest.skip(f"nobody has solved {lab.key} by another way yet")
    assert variants.lost(kept[0], lab, range(1, 2)) == []


@pytest.mark.proof
@pytest.mark.parametrize(("key", "variant"), KEPT, ids=[f"{k}-{p.stem}" for k, p in KEPT])
def test_a_right_variant_gets_every_point_at_every_seed(key: str, variant: Path) -> None:
    assert variants.lost(variant, find_lab(key), range(20)) == []


def test_a_patch_brings_a_solution_back(tmp_path: Path) -> None:
    lab = labs()[0]
    solved = tmp_path / "solved"
    solved.mkdir()
    for path in lab.reference.glob("*.py"):
        (solved / path.name).write_bytes(path.read_bytes())
    (solved / "mine.py").write_text("X = 1\n")
    patch = variants.keep(lab, solved, "a", tmp_path)
    variants.write(patch, lab, tmp_path / "package")
    made = tmp_path / "package" / lab.package
    assert {p.name: p.read_text() for p in made.glob("*.py")} == {
        p.name: p.read_text() for p in solved.glob("*.py")
    }


def test_a_patch_that_no_longer_fits_says_so(tmp_path: Path) -> None:
    old = tmp_path / "old.patch"
    old.write_text("--- a/bpe.py\n+++ b/bpe.py\n@@ -1,1 +1,1 @@\n-what was there\n+x = 1\n")
    with pytest.raises(variants.VariantError, match="does not fit the stubs of lab01"):
        variants.write(old, find_lab("01"), tmp_path / "package")
