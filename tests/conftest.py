"""What the course's own tests share."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grader.course.lab_toml import Lab, labs
from grader.course.paths import find_commands
from grader.course.stubs import write_stubs
from tests import processor_time
from tests.system_tools import not_tested

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The course's tests are of CPU tensors. Those meant for a GPU are run with NANOVLLM_TESTS_ON=cuda.
if os.environ.get("NANOVLLM_TESTS_ON") != "cuda":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["NANOVLLM_ENFORCE_EAGER"] = "1"  # the compiled step has tests of its own
# The course is tested with the reference, whatever labs have been started in this copy of it.
os.environ["NANOVLLM_MINE"] = tempfile.mkdtemp(prefix="nothing-started-")
LABS = labs()
SPENT: Counter[str] = Counter()  # processor seconds by area
find_commands()
# A shell that starts `make test` in the background has Ctrl-C ignored, and every program that the
# tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was left out for want of a program, and how to get it."""
    skipped = terminalreporter.stats.get("skipped", [])
    line = not_tested(str(report.longrepr) for report in skipped)
    if line:
        terminalreporter.write_line(line, yellow=True)
    if SPENT.total() > 60:  # not for a file or two
        for line in processor_time.table(SPENT):
            terminalreporter.write_line(line)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note the processor time of a test under its area."""
    before = processor_time.used()
    done = yield
    SPENT[processor_time.area(item.nodeid)] += max(0.0, processor_time.used() - before)
    return done


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker sends what it has noted, and the time for its imports, to the one that tells it."""
    if hasattr(session.config, "workeroutput"):
        SPENT[processor_time.REST] += max(0.0, processor_time.used() - SPENT.total())
        session.config.workeroutput["spent"] = dict(SPENT)
    else:
        SPENT[processor_time.LINT] += processor_time.before()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take what a worker has sent; one that crashed has sent nothing."""
    SPENT.update(getattr(node, "workeroutput", {}).get("spent", {}))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for `lab` runs once for every lab that has landed."""
    if "lab" in metafunc.fixturenames:
        metafunc.parametrize("lab", LABS, ids=[lab.key for lab in LABS])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test with the mark `few(n)`, n cases spread over all stay; the others are proofs."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("few") and not item.get_closest_marker("proof"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for found in cases.values():
        [keep] = found[0].get_closest_marker("few").args
        kept = {number * len(found) // keep for number in range(keep)}
        for number, item in enumerate(found):
            if number not in kept:
                item.add_marker(pytest.mark.proof)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """A command that a test ran in this process may have given torch more, which wait for each
    other: on a machine where all processors are busy later tests would take ten times as long."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture
def stub_package(lab: Lab, tmp_path: Path) -> Path:
    """A student's package folder that holds the untouched stubs of one lab."""
    write_stubs(lab, tmp_path / lab.package)
    return tmp_path
