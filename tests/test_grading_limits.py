"""What a submission sends, says and starts is bounded where it could cost others or tell more."""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import subprocess
import sys
import threading
import time

import pytest

from grader.checks import observation_json
from grader.course.paths import ROOT
from grader.grading.report import RAISED, STOPPED
from grader.grading.run_items import SILENT, Rounds
from grader.grading.verdicts import draw
from grader.sandbox import memory_use, seccomp
from grader.sandbox.cgroup import Group
from grader.sandbox.job import Answer
from grader.sandbox.limits import Limits
from grader.sandbox.memory_use import THREADS
from grader.sandbox.talk import Talk

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the box is there on Linux only")


def heard(sent: list[bytes], limits: Limits) -> Answer:
    """What the grader keeps of lines that come in these pieces."""
    link, server = socket.socketpair()
    ours, theirs = socket.socketpair()

    def send() -> None:
        with theirs, contextlib.suppress(OSError):
            for piece in sent:
                theirs.sendall(piece)
            server.sendall(b'{"ended": ""}')

    def obey() -> None:
        if server.recv(64) == b"stop":
            server.sendall(b'{"ended": "stopped"}')

    threads = [threading.Thread(target=work) for work in (send, obey)]
    for thread in threads:
        thread.start()
    with ours, link:
        answer = Talk(ours, link, limits, 60, Group([])).ask({}, last=True)
    for thread in threads:
        thread.join()
    server.close()
    return answer


def test_a_line_in_many_pieces_is_one_event() -> None:
    text = json.dumps({"item": "x", "data": "y" * 3_000_000}).encode()
    pieces = [text[i : i + 50_000] for i in range(0, len(text), 50_000)]
    pieces += [b"\n", b'{"it', b'em": "z"}\n{"done"', b": true}\n"]
    found = heard(pieces, Limits())
    assert [event.get("item") for event in found.events] == ["x", "z", None]
    assert not found.ended


def test_tiny_lines_cost_more_than_their_size() -> None:
    found = heard([b"{}\n" * 20_000] * 10, Limits(output_mb=1))
    assert "more than 1 MB" in found.ended
    assert len(found.events) <= 70_000, "what one read brings"


@pytest.mark.parametrize("kind", [lambda n: n, lambda n: [n, 0]])
def test_keys_made_to_collide_are_refused_at_once(kind) -> None:
    pairs = [[kind(number * (2**61 - 1)), 0] for number in range(100_000)]
    start = time.process_time()
    with pytest.raises(observation_json.WireError, match="collide"):
        observation_json.decode({"map": pairs})
    assert time.process_time() - start < 10  # it was hours


def test_honest_keys_do_not_collide() -> None:
    honest = {-1: 0, -2: 1, 0: 2, "": 3, 2**61 - 1: 4, (1, 2): 5, None: 6}
    assert (
        observation_json.decode(json.loads(json.dumps(observation_json.encode(honest)))) == honest
    )


@pytest.mark.parametrize(
    ("why", "told"),
    [
        ("HIDDEN inputs", SILENT),
        ("it ended with exit status 77", SILENT),
        ("it was ended by SIGUSR1", SILENT),
        ("it took more than 1234567 seconds", "it took too long"),
        ("it used more than 98765 MB of memory HIDDEN", "it used too much memory"),
    ],
)
def test_the_end_of_a_scenario_tells_nothing_else(why: str, told: str) -> None:
    rounds = Rounds(lambda items: Answer(), str)
    rounds.lost["a#0"] = why
    assert draw("a#0", rounds, {}) == (STOPPED, told, why)


@pytest.mark.parametrize("name", ["BlockingIOError", "HIDDEN", "object", None, ["KeyError"]])
def test_of_errors_the_usual_ones_are_named(name: object) -> None:
    rounds = Rounds(lambda items: Answer(), str)
    rounds.results |= {"a#0": {"raised": name}, "b#0": {"raised": "KeyError"}}
    assert draw("a#0", rounds, {})[:2] == (RAISED, "it raised an error of its own")
    assert draw("b#0", rounds, {})[:2] == (RAISED, "it raised KeyError")


@LINUX
def test_threads_are_counted_with_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import threading, time\nthreading.stack_size(1 << 16)\n" + (
        f"for _ in range({THREADS * 3}): threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "print('started', flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    monkeypatch.setattr(memory_use, "descendants", lambda of: [child.pid])  # and no other test's
    try:
        assert child.stdout is not None and child.stdout.readline()
        assert not memory_use.excess(4, 1 << 20, 0)
        assert "threads" in memory_use.excess(2, 1 << 20, 0)
    finally:
        child.kill()
        child.wait()


@LINUX
def test_calls_that_hold_uncounted_memory_are_unknown() -> None:
    assert not seccomp.missing()
    code = (
        "import os, ctypes; from grader.sandbox.process_rights import drop_rights\n"
        "drop_rights('bubblewrap')\n"
        "libc = ctypes.CDLL(None)\n"
        "assert libc.shmget(0, 4096, 0o1600) == libc.ptrace(16, 1, 0, 0) == -1\n"
        "try: os.memfd_create('x')\nexcept OSError as error: print(error.errno)\n"
        "assert os.fork() or os._exit(0) is None\nos.wait(); print(open('/dev/null').read() == '')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.stdout.split() == [str(errno.ENOSYS), "True"], done.stderr
