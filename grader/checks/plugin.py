"""The pytest plugin: checks see the student's code of one lab, and fail with cards."""

from __future__ import annotations

import gc
import zlib
from pathlib import Path
from typing import Any

import pytest

from grader.checks.plugin_collect import Gathering, lab_of
from grader.checks.plugin_run import Running
from grader.checks.plugin_session import LabSession
from grader.checks.plugin_summary import Closing
from grader.checks.runaway import Stopping


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("labs", "nano-vLLM Labs")
    group.addoption(
        "--mine",
        action="store_true",
        help="run the whole chain on your own code of all labs that you started",
    )
    group.addoption("--reference", action="store_true", help="grade the reference")
    group.addoption("--seed", type=int, default=0, help="seed of the checks' random inputs")
    group.addoption(
        "--unblocked",
        action="store_true",
        help="give the card also of a check behind a failed task",
    )
    group.addoption(
        "--record",
        default="",
        metavar="FILE",
        help="write outcomes and observations to FILE as JSON",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "check(task, points, title, stress=False): one graded check of a lab; `stress`: a random "
        "history, which `lab stress` repeats at seed after seed",
    )
    if config.getoption("mine") and config.getoption("reference"):
        raise pytest.UsageError("--mine and --reference exclude each other; give one of them.")
    session = LabSession(config)
    for half in (Gathering, Running, Stopping, Closing):
        config.pluginmanager.register(half(session), f"labs-{half.__name__.lower()}")
    if config.args and all(lab_of(Path(arg.partition("::")[0]).resolve()) for arg in config.args):
        config.option.reportchars = "N"  # the cards and the summary by task say it already
        config.option.continue_on_collection_errors = True


def pytest_collection_finish() -> None:
    """Keep what was imported out of pytest's search for garbage at its end: half a second."""
    gc.freeze()


def _check_seed(request: pytest.FixtureRequest, seed: int) -> int:
    return zlib.crc32(request.node.name.encode()) ^ (seed * 0x9E3779B1 & 0xFFFFFFFF)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The run's seed, mixed with the check's name."""
    return _check_seed(request, request.config.option.seed) & 0x7FFFFFFF


@pytest.fixture
def rng(seed: int) -> Any:
    """A numpy Generator, new for each check."""
    import numpy as np

    return np.random.default_rng(seed)


@pytest.fixture
def generator(seed: int) -> Any:
    """A torch Generator on the CPU, new for each check."""
    import torch

    return torch.Generator().manual_seed(seed)
