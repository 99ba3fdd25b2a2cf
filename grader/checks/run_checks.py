"""Run a lab's checks on any package folder, in a process of its own, and read the record."""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

from grader.course.errors import LabError
from grader.course.outcome import Outcome, Status
from grader.course.paths import LABS, ROOT

FAMILIES = ("qwen3", "qwen2", "llama", "mistral", "gpt2")
PRELOADED = [
    "torch",
    "torch._dynamo",
    "transformers",
    *(f"transformers.models.{family}.modeling_{family}" for family in FAMILIES),
    "tokenizers",
    "pytest",
    "hypothesis",
    "scipy.stats",
    "fastapi",
    "httpx",
    "jaxtyping",
    "prometheus_client",
    "grader.checks.plugin",
]
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Run:
    """What to run: a lab's checks on `package` (None: the reference)."""

    lab: str
    package: Path | None = None
    only: str = ""  # a selection as pytest's -k takes it, for instance task3
    seed: int = 0
    unblocked: bool = False
    first: bool = False  # stop at the first failure
    files: tuple[str, ...] = ()  # these files of checks, in this order; else all


@dataclass(frozen=True)
class Record:
    """What a run recorded, and what it printed."""

    outcomes: tuple[Outcome, ...]
    observations: dict[str, dict[str, Any]] = field(default_factory=dict)
    printed: str = ""


def run_checks(run: Run) -> Record:
    """Run the checks in this process, which must not have been used for anything else."""
    import pytest

    os.chdir(ROOT)
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.pop("NANOVLLM_CODE", None)
    os.environ.pop("NANOVLLM_MINE", None)
    if run.package is not None:
        os.environ["NANOVLLM_MINE"] = str(run.package)
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.json"
        arguments = [
            *([str(LABS / run.lab / name) for name in run.files] or [str(LABS / run.lab)]),
            "-q",
            "-p",
            "no:cacheprovider",
            "--color=no",
            "--seed",
            str(run.seed),
            "--record",
            str(record),
        ]
        arguments += ["-k", run.only] if run.only else []
        arguments += ["--reference"] if run.package is None else []
        arguments += ["--unblocked"] if run.unblocked else []
        arguments += ["--exitfirst"] if run.first else []
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            pytest.main(arguments)
        if not record.is_file():
            raise RuntimeError(f"pytest wrote no record for {run}:\n{printed.getvalue()}")
        data = json.loads(record.read_text(encoding="utf-8"))
    outcomes = tuple(
        Outcome(**{**entry, "status": Status(entry["status"])}) for entry in data["outcomes"]
    )
    return Record(outcomes, data["observations"], printed.getvalue())


def fresh_processes(function: Callable[[T], R], work: Iterable[T], jobs: int = 0) -> Iterator[R]:
    """Map in order, each item in a new process that finds the heavy imports already done.

    Raises LabError where such a process ends without a result, which a pool would wait for.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    running: set[BaseProcess] = set()
    # A start also asks all others whether they have ended; of two that ask one gets no exit code.
    asks = threading.Lock()

    def one(item: T) -> R:
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_answer, args=(there, function, item), daemon=True)
        with asks:
            process.start()
        there.close()
        running.add(process)
        try:
            result, error = here.recv()
        except EOFError:
            with asks:
                process.join()
            raise LabError(f"the code ended its process ({process.exitcode}).") from None
        finally:
            running.discard(process)
        process.join()
        if error is not None:
            raise error
        return result

    with ThreadPoolExecutor(jobs or os.cpu_count() or 1) as pool:
        try:
            yield from pool.map(one, work)
        finally:  # nobody wants the others' results
            pool.shutdown(wait=False, cancel_futures=True)
            for process in [*running]:
                process.kill()


def _answer(line: Connection, function: Callable[[T], R], item: T) -> None:
    try:
        answer = function(item), None
    except Exception as error:
        error.add_note(traceback.format_exc())
        answer = None, error
    line.send(answer)
