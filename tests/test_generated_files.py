"""What counts as stale among generated files, and what does not."""

from __future__ import annotations

import base64
import json
import shutil
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from grader.authoring import build
from grader.checks import hints_file
from grader.course.lab_toml import Lab, find_lab
from grader.course.paths import LABS


@pytest.fixture
def copied(tmp_path: Path) -> Lab:
    """Lab 07 in a folder of its own."""
    shutil.copytree(LABS / "lab07", tmp_path / "lab07")
    return replace(find_lab(7), home=tmp_path)


def test_hints_that_another_zlib_packed_are_not_stale(copied: Lab) -> None:
    file = copied.folder / "hints.txt"
    first, _, packed = file.read_text(encoding="utf-8").partition("\n")
    hints = hints_file.decoded(f"{first}\n{packed}")

    def write() -> str:
        data = base64.b64encode(zlib.compress(json.dumps(hints).encode(), 0)).decode()
        file.write_text(f"{first}\n{data}\n", encoding="utf-8")
        return file.read_text(encoding="utf-8")

    packed_so = write()
    assert hints_file.encoded(copied) == packed_so
    hints[next(iter(hints))][0] += " More."
    packed_so = write()
    assert hints_file.encoded(copied) != packed_so


def test_whatever_lies_among_stubs_and_is_none_is_seen(
    copied: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "ROOT", copied.home)
    for name in ("old.py", "old.html"):
        (copied.stubs / name).write_text("", encoding="utf-8")
    found = {path.name for path in build._orphans(copied, {})}
    assert {"old.py", "old.html"} <= found
