"""Ranks that are killed, stopped or never start: the wait ends, and no process is left behind."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from nanovllm import SamplingParams
from nanovllm.parallel.engine import ParallelEngine
from nanovllm.parallel.errors import ExecutorDied
from nanovllm.parallel.executor import Executor
from nanovllm.parallel.launch import ProcessRank, start_processes, start_threads
from nanovllm.parallel.line import Line, LineClosed, LineTimeout, make_line
from nanovllm.parallel.share_spec import ShareSpec
from tests.parallel_tools import (
    PHASES,
    DoomedSpec,
    answers,
    drain,
    engine_on,
    gone,
    plain_engine,
    spec_of,
    tokens,
)
from tests.processes import ROOT
from tests.tiny_checkpoint import SMALL, save_random

NEVER = 600.0  # a timeout that must not be what ends a wait
HANGS = 60.0  # seconds after which a wait is given up as one that would not have ended
REQUESTS = [
    ([5, 9, 2, 7, 7, 1], SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)),
    ([4, 4], SamplingParams(temperature=1.0, seed=3, n=2, max_tokens=20, ignore_eos=True)),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    save_random(folder, **SMALL)
    return folder


@pytest.fixture(scope="module")
def wanted(folder: Path) -> dict:
    engine = plain_engine(folder)
    for request in REQUESTS:
        engine.add_request(*request)
    return answers(drain(engine))


@pytest.fixture(autouse=True)
def tests_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def meeting(tmp_path: Path) -> str:
    return (tmp_path / f"meeting-{random.random()}").as_uri()


def ends(action: Callable[[], Any]) -> BaseException | None:
    """What an action raises; the test fails where it would wait for ever."""
    outcome: list[BaseException | None] = []

    def run() -> None:
        try:
            action()
            outcome.append(None)
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(HANGS)
    assert outcome, "it hangs"
    return outcome[0]


def generate_until_it_dies(engine: ParallelEngine, wanted: dict) -> ExecutorDied:
    """Run requests; what was sent out before the end is what one rank would have sent."""
    for request in REQUESTS:
        engine.add_request(*request)
    events: list = []

    def run() -> None:
        while engine.has_unfinished:
            events.extend(engine.step())

    error = ends(run)
    assert isinstance(error, ExecutorDied), error
    for sample, sent in tokens(events).items():
        assert tuple(sent) == wanted[sample][: len(sent)], "nothing wrong was sent"
    return error


def pids_of(ranks: list[ProcessRank]) -> list[int]:
    return [rank.process.pid for rank in ranks]


def deaths() -> list[Any]:
    """Each phase with each victim and split; two of them for `make test`."""
    found = []
    for number, (phase, split, victim) in enumerate(product(PHASES, [(2, 1), (1, 2)], [0, 1])):
        often = () if number in (8, 13) else pytest.mark.proof
        found.append(pytest.param(phase, victim, split, marks=often))
    return found


@pytest.mark.parametrize(("phase", "victim", "split"), deaths())
def test_a_rank_dies_in_every_phase_of_a_step(
    folder: Path, wanted: dict, tmp_path: Path, phase: str, victim: int, split: tuple[int, int]
) -> None:
    spec = spec_of(
        folder, *split, make=DoomedSpec, meeting=meeting(tmp_path), victim=victim, phase=phase
    )
    ranks = start_processes(spec)
    made: list[Executor] = []

    def start() -> None:
        made.append(Executor(ranks, timeout=NEVER, start_timeout=NEVER))

    error = ends(start)
    answering = split[0] * (split[1] - 1)
    if phase == "load":
        assert isinstance(error, ExecutorDied), error
    else:
        assert error is None, error
        if phase == "in the answer" and victim != answering:
            made[0].close()
            return  # it sends none
        error = generate_until_it_dies(engine_on(spec, made[0]), wanted)
    assert f"rank {victim} has ended (killed by signal 9" in str(error)
    assert all(map(gone, pids_of(ranks)))


def killed_at_random(folder: Path, wanted: dict, tmp_path: Path, seed: int) -> None:
    """kill -9 from outside, at any moment from the start on."""
    rng = random.Random(seed)
    split = rng.choice([(2, 1), (1, 2)])
    spec = spec_of(folder, *split, meeting=meeting(tmp_path))
    ranks = start_processes(spec)
    victim = rng.randrange(2)
    executor: list[Executor] = []
    early = rng.random() < 0.2
    if early:
        killer = threading.Timer(rng.uniform(0, 2.0), ranks[victim].process.kill)
        killer.start()
    error = ends(lambda: executor.append(Executor(ranks, timeout=NEVER, start_timeout=NEVER)))
    if error is None:
        engine = engine_on(spec, executor[0])
        if not early:
            engine.add_request([1, 2], REQUESTS[0][1])
            engine.step()  # all is warm
            engine.abort(0)
            killer = threading.Timer(rng.uniform(0, 0.15), ranks[victim].process.kill)
            killer.start()
        error = ends(lambda: repeat(engine, wanted))
    killer.join()
    assert isinstance(error, ExecutorDied), error
    assert f"rank {victim} has ended (killed by signal 9" in str(error)
    assert all(map(gone, pids_of(ranks)))


def repeat(engine: ParallelEngine, wanted: dict) -> None:
    """The same requests again and again, until the executor dies."""
    while True:
        ids = [engine.add_request(*request) for request in REQUESTS]
        events: list = []
        try:
            while engine.has_unfinished:
                events += engine.step()
        finally:
            for (request, index), sent in tokens(events).items():
                if request in ids:
                    assert tuple(sent) == wanted[ids.index(request), index][: len(sent)]


def test_a_kill_at_random(folder: Path, wanted: dict, tmp_path: Path) -> None:
    killed_at_random(folder, wanted, tmp_path, 0)


@pytest.mark.proof
def test_200_kills(folder: Path, wanted: dict, tmp_path: Path) -> None:
    for seed in range(100, 300):
        killed_at_random(folder, wanted, tmp_path, seed)


@pytest.mark.proof
def test_a_rank_that_was_stopped(folder: Path, tmp_path: Path) -> None:
    spec = spec_of(folder, 2, 1, meeting=meeting(tmp_path))
    ranks = start_processes(spec)
    executor = Executor(ranks, timeout=1.0)
    os.kill(ranks[1].process.pid, signal.SIGSTOP)
    engine = engine_on(spec, executor)
    engine.add_request(*REQUESTS[0])
    error = ends(engine.step)
    assert isinstance(error, ExecutorDied), error
    assert "did not answer call 2 in time" in str(error)
    assert all(map(gone, pids_of(ranks)))


def test_checkpoints_that_differ(folder: Path, tmp_path: Path) -> None:
    """The same names, shapes and sizes: one rank has read other weights."""
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    weights = other / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    weights.write_bytes(data)
    specs = [spec_of(path, 2, 1) for path in (folder, other)]
    ranks = start_threads(2, lambda comm: specs[comm.rank].share(comm))
    error = ends(lambda: Executor(ranks))
    assert isinstance(error, ExecutorDied), error
    assert "rank 1 has read another checkpoint than rank 0" in str(error)
    assert not any(rank.alive for rank in ranks)


@dataclass(frozen=True)
class LostSpec(ShareSpec):
    """Rank 1 cannot even be told what to do: its process ends with words of its own."""

    def load(self, rank: int) -> Any:
        if rank == 1:
            print("no such device", file=sys.stderr, flush=True)
            os._exit(3)
        return super().load(rank)


@pytest.mark.proof
def test_a_rank_that_cannot_start(folder: Path, tmp_path: Path) -> None:
    ranks = start_processes(spec_of(folder, 2, 1, make=LostSpec, meeting=meeting(tmp_path)))
    error = ends(lambda: Executor(ranks, start_timeout=NEVER))
    assert isinstance(error, ExecutorDied), error
    assert "rank 1 has ended (exit code 3 / no such device)" in str(error)
    assert all(map(gone, pids_of(ranks)))


@pytest.mark.proof
def test_a_port_in_use(folder: Path) -> None:
    """The ranks meet at a file; who lets them meet at a port is told when it is taken."""
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        where = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        ranks = start_processes(spec_of(folder, 2, 1, meeting=where, timeout=3.0))
        error = ends(lambda: Executor(ranks, grace=1.0))
    assert isinstance(error, ExecutorDied), error
    assert where in str(error)
    assert "\n" not in str(error)
    assert all(map(gone, pids_of(ranks)))


DRIVER = """
import sys, time
from pathlib import Path
from nanovllm import LLM, SamplingParams
if __name__ == "__main__":
    llm = LLM(sys.argv[1], tensor_parallel_size=2)
    print(*(rank.process.pid for rank in llm.model.executor.ranks), flush=True)
    if sys.argv[2] == "idle":
        time.sleep(600)
    if sys.argv[2] == "leaves":
        raise SystemExit("for a reason of its own")
    while True:
        llm.generate("Once", SamplingParams(max_tokens=50, ignore_eos=True), use_tqdm=False)
"""


@pytest.mark.parametrize(
    "state",
    [
        pytest.param("idle", marks=pytest.mark.proof),
        "busy",
        pytest.param("leaves", marks=pytest.mark.proof),
    ],
)
def test_a_driver_that_ends_takes_its_ranks_along(folder: Path, state: str) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(folder), state], stdout=subprocess.PIPE, cwd=ROOT
    )
    pids = [int(word) for word in driver.stdout.readline().split()]
    assert len(pids) == 2
    if state != "leaves":
        driver.kill()
    driver.wait()
    driver.stdout.close()
    until = time.monotonic() + HANGS
    while not all(map(ended, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    assert all(map(ended, pids)), "orphans"


def ended(pid: int) -> bool:
    """Gone, or dead and not yet waited for by whoever inherits orphans here."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_an_interrupt_in_the_middle_of_a_message_closes_its_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was read of it is lost, so nobody may read on as if the next message began there."""
    here, there = make_line()
    there.send(b"an answer")

    def interrupted(connection: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(Connection, "recv_bytes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        here.receive()
    monkeypatch.undo()
    with pytest.raises(LineClosed):
        here.receive()


@pytest.mark.parametrize("patience", [0, 0.2])
def test_an_answer_that_nobody_reads_for_a_while(patience: float) -> None:
    """A rank's end of its line has no limit: a driver may be interrupted, and come back late."""
    here, there = socket.socketpair()
    line, mine, failed = Line(here), Line(there, patience), []

    def answer() -> None:
        try:
            mine.send(b"x" * (1 << 24))  # more than the socket keeps
        except LineTimeout as error:
            failed.append(error)

    sending = threading.Thread(target=answer)
    sending.start()
    sending.join(0.6)
    assert sending.is_alive() == (patience == 0)
    assert bool(failed) == (patience > 0)
    if not patience:
        assert len(line.receive()) == 1 << 24
    line.close()
    sending.join()
