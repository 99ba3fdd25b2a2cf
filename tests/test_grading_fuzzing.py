"""Whatever a student sends is read within bounds of time and memory, and nothing else is raised.

ATTACKS_CASES says how many cases each reader gets.
"""

from __future__ import annotations

import json
import os
import time
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch  # noqa: F401 - its import is no part of a case
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grader.checks import observation_json, scenarios
from grader.classroom import sanitize_html
from grader.classroom.pack_contents import PackError, read_pack
from grader.classroom.repair_notebook import unreadable
from grader.grading.gradebook_csv import _cell
from grader.grading.report_files import file_name
from grader.grading.submission import Submission, read
from grader.grading.upload_names import Person, find_student, owner
from grader.sandbox import talk
from grader.sandbox.limits import Limits
from tests.grading_corpus import LAB

pytestmark = pytest.mark.proof
CASES = int(os.environ.get("ATTACKS_CASES", 300))
SECONDS, MEGABYTES = 5.0, 200
fuzz = settings(
    max_examples=CASES, deadline=None, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
NAMES = st.text(min_size=1, max_size=40) | st.sampled_from(
    [
        "nanovllm/batching/request.py",
        "batching/budget.py",
        "lab04.ipynb",
        "manifest.json",
        "../x.py",
    ]
)
LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=10)
WIRE = st.recursive(
    LEAVES | st.sampled_from(["int64", "bfloat16", ">f4", "O", "V9999999", "AAAA", "0x1p+9"]),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(
        st.sampled_from(["array", "tensor", "shape", "raw", "map", "set", "float", "bytes", "x"]),
        inner, max_size=4,
    ),
    max_leaves=30,
)  # fmt: skip
MARKS = st.sampled_from(
    [*"[]()!*_`<>&#$\\|~-+=\n ", "![", "](", "<b", "$$", "```", "  \n", "[^1]:", "* "]
)


@contextmanager
def bounded() -> Iterator[None]:
    """Processor time and memory of one case."""
    tracemalloc.start()
    start = time.process_time()
    try:
        yield
    finally:
        used, most = time.process_time() - start, tracemalloc.get_traced_memory()[1] / 1e6
        tracemalloc.stop()
    assert used < SECONDS and most < MEGABYTES, (used, most)


@fuzz
@given(files=st.dictionaries(NAMES, st.binary(max_size=200), max_size=6), cuts=st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=4), method=st.sampled_from(
    [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]))  # fmt: skip
def test_a_damaged_pack(
    tmp_path: Path, files: dict[str, bytes], cuts: list[tuple[float, int]], method: int
) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo("a")  # it would cut the name at a NUL
            info.filename = name.encode("utf-8", "replace").decode()
            archive.writestr(info, data, method)
    whole = bytearray(path.read_bytes())
    for place, value in cuts:
        whole[int(place * (len(whole) - 1))] = value
    path.write_bytes(whole)
    with bounded():
        assert isinstance(read(path, LAB, Limits(submission_mb=1)), Submission)
        with suppress(PackError):
            read_pack(path, "lab04")


@fuzz
@given(data=st.binary(max_size=300) | st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(
        ["cells", "metadata", "nbformat", "cell_type", "source", "outputs", "id"]), inner)
).map(lambda data: json.dumps(data).encode()))  # fmt: skip
def test_a_notebook_that_is_none(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.ipynb"
    path.write_bytes(data)
    with bounded():
        assert isinstance(unreadable(path), str)


@fuzz
@given(observed=WIRE, reference=WIRE)
def test_an_observation_of_any_kind(observed: Any, reference: Any) -> None:
    with bounded():
        try:
            found = [observation_json.decode(one) for one in (observed, reference)]
        except observation_json.WireError:
            return
        for one in found:
            with suppress(ValueError, TypeError):  # which the judge counts as no right answer
                scenarios.judge(one, found[1])


@fuzz
@given(line=st.binary(max_size=200) | WIRE.map(lambda data: json.dumps(data).encode()))
def test_an_event_of_any_kind(line: bytes) -> None:
    with bounded():
        event = talk._event(line)
        assert event is None or json.loads(json.dumps(event)) == event or "NaN" in str(line)


@fuzz
@given(unit=st.lists(MARKS, min_size=1, max_size=5).map("".join))
def test_markdown_of_any_kind(unit: str) -> None:
    source = (unit * sanitize_html.LONGEST)[: sanitize_html.LONGEST]
    start = time.process_time()
    sanitize_html.markdown2html({}, source)
    assert time.process_time() - start < SECONDS, repr(unit)


@fuzz
@given(name=st.text(max_size=200), others=st.lists(st.text(min_size=1, max_size=20), max_size=4))
def test_a_name_of_any_kind(name: str, others: list[str]) -> None:
    roster = [Person(one, one, None, None) for one in others]
    with bounded():
        whose: Callable[[str], str] = lambda one: find_student(one, roster)  # noqa: E731
        assert isinstance(whose(name or "x"), str) and owner([name or "x", "b"], roster)
        assert file_name(name).isascii() and "/" not in file_name(name)
        assert _cell(name).lstrip()[:1] not in ("=", "+", "-", "@")
