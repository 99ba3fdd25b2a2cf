"""Ranks as processes of their own, or as threads of this one (given)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

import nanovllm
from nanovllm.parallel.communicator import Communicator
from nanovllm.parallel.errors import RankDied
from nanovllm.parallel.executor_interface import Share
from nanovllm.parallel.line import Line, make_line
from nanovllm.parallel.threads import ThreadCommunicator, thread_communicators
from nanovllm.parallel.wire import to_bytes
from nanovllm.parallel.worker import run_worker

ROOT = Path(nanovllm.__file__).resolve().parent.parent
LAST_LINES = 3  # of what a process said before its end, for the error


class Spec(Protocol):
    """What a process must know to load its share; goes there as bytes."""

    size: int

    def load(self, rank: int) -> Share: ...


class ProcessRank:
    """A process that runs `rank_process.py`. It ends with this one, however this one ends."""

    def __init__(self, rank: int, spec: Spec, threads: int) -> None:
        self.rank = rank
        self.line, there = make_line()
        self._words = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        command = [sys.executable, "-m", "nanovllm.parallel.rank_process"]
        self.process = subprocess.Popen(
            [*command, str(there.fileno()), str(rank)],
            pass_fds=[there.fileno()],
            stdin=subprocess.PIPE,  # the process ends when it is closed: this one need not do it
            stderr=self._words,
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": str(threads)},
        )
        there.close()  # or its end would not be noticed
        self.line.send(to_bytes(spec))

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def why_ended(self) -> str:
        try:
            code = self.process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            return "its line is closed"
        if code < 0:
            return f"killed by signal {-code}, {signal.strsignal(-code)}"
        self._words.seek(0)
        words = [line.strip() for line in self._words.readlines() if line.strip()]
        return " / ".join([f"exit code {code}", *words[-LAST_LINES:]])

    def stop(self, grace: float) -> None:
        try:
            self.process.wait(timeout=grace)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdin.close()


class ThreadRank:
    """A thread that runs the worker. It cannot be killed, but no other rank waits for it then."""

    def __init__(self, comm: ThreadCommunicator, load: Callable[[Communicator], Share]) -> None:
        self.rank = comm.rank
        self.line, there = make_line()
        self.comm = comm
        self._thread = threading.Thread(
            target=self._run, args=(there, load), name=f"rank {self.rank}", daemon=True
        )
        self._thread.start()

    def _run(self, there: Line, load: Callable[[Communicator], Share]) -> None:
        try:
            run_worker(there, lambda: load(self.comm))
        finally:
            there.close()
            self.comm.end()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def why_ended(self) -> str:
        return "its thread has returned"

    def stop(self, grace: float) -> None:
        self._thread.join(grace)
        if self.alive:
            self.comm.end(RankDied("the executor is closed."))
            self._thread.join(1.0)


def start_processes(spec: Spec) -> list[ProcessRank]:
    """A process for each rank of a spec; each loads `spec.load(rank)`. They share
    this one's threads."""
    threads = max(1, torch.get_num_threads() // spec.size)
    ranks: list[ProcessRank] = []
    try:
        for rank in range(spec.size):
            ranks.append(ProcessRank(rank, spec, threads))
    except BaseException:
        for rank in ranks:
            rank.stop(0.0)
        raise
    return ranks


def start_threads(size: int, load: Callable[[Communicator], Any]) -> list[ThreadRank]:
    """A thread for each rank; each loads `load(comm)`. For checks and tests."""
    return [ThreadRank(comm, load) for comm in thread_communicators(size)]
