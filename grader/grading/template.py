"""The warm process: everything heavy imported, it forks one child for each piece of work.

Started once a lab and worker, inside bubblewrap where there is one, by `grader.grading.warm`. It
never looks at a submission itself: it hands two open files to a fork of itself (the work to do, a
pipe for the events) and says when and how that child has ended. It lives as long as its socket.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator

from _pytest.config import default_plugins

from grader.catalog import find_lab
from grader.grading import bytecode, watch
from grader.grading.confine import adopt_orphans, undumpable
from grader.run import PRELOADED

POLL_SECONDS = 0.01
WATCH_SECONDS = 0.1
MESSAGE = 65536
OURS = (
    "grader.grading.child",
    "grader.grading.hidden",
    "grader.grading.visible",
    "grader.integrity",
    # What checks came to import in every submission anew.
    *(f"_pytest.{name}" for name in default_plugins),
    "pytest_timeout",
    "hypothesis.stateful",
    "pdb",
    "readline",
    "tokenizers.trainers",
    "transformers.convert_slow_tokenizer",
)


def main() -> None:
    """Serve the socket whose number is the first argument; then come the rung and the lab."""
    link = socket.socket(fileno=int(sys.argv[1]))
    link.set_inheritable(False)
    rung = sys.argv[2]
    prepare(sys.argv[3])
    undumpable()
    adopt_orphans()
    gc.collect()
    gc.freeze()
    link.sendall(b'{"ready": true}')
    warm_kb = watch.memory_kb(os.getpid()) if sys.platform == "linux" else 0
    while True:
        message, handles, _, _ = socket.recv_fds(link, MESSAGE, 2)
        if not message:
            return
        _serve(link, json.loads(message), handles, rung, warm_kb)


def prepare(lab: str) -> None:
    """Import, compile and use once whatever the checks of a lab need ("": its reference alone)."""
    for name in [*PRELOADED, *OURS]:
        importlib.import_module(name)
    bytecode.remember(find_lab(lab) if lab else None)
    use_torch()
    if lab:
        use_hypothesis()


def use_torch() -> None:
    """Do once what torch does at first use: it looks at the processor."""
    import torch

    numbers = torch.ones(8, 8, dtype=torch.bfloat16)
    with torch.inference_mode():
        (numbers.float() @ numbers.float()).softmax(-1).rsqrt().sum().item()
        (numbers @ numbers).pow(2).mean().item()


def use_hypothesis() -> None:
    """Do once what hypothesis does at first use: it lists Unicode's characters."""
    from hypothesis import configuration, given, settings, strategies

    with tempfile.TemporaryDirectory() as folder:
        configuration.set_hypothesis_home_dir(folder)
        nothing = given(strategies.text())(lambda text: None)
        # In fewer examples it does not come to look for constants in the course's modules.
        settings(max_examples=100, derandomize=True, database=None, deadline=None)(nothing)()
    configuration.set_hypothesis_home_dir(None)  # each submission has one of its own


def _serve(link: socket.socket, job: dict, handles: list[int], rung: str, warm_kb: int) -> None:
    child = os.fork()
    if child == 0:
        _become_child(link, handles, rung, job)
    for handle in handles:
        os.close(handle)
    ended = _follow(link, child, job, warm_kb)
    watch.kill_all(child)
    link.sendall(json.dumps({"ended": ended}).encode())


def _become_child(link: socket.socket, handles: list[int], rung: str, job: dict) -> None:
    status = 1
    try:
        link.close()
        os.setsid()
        from grader.grading.child import run

        run(handles[0], handles[1], rung, job)
        status = 0
    except BaseException:
        os.write(handles[1], json.dumps({"crash": traceback.format_exc()[-2000:]}).encode() + b"\n")
    finally:
        os._exit(status)


def _follow(link: socket.socket, child: int, job: dict, warm_kb: int) -> str:
    """Wait for the child's end; "" when it exited by itself with status 0."""
    with _end_of(child) as end:
        return _watched(link, child, job, warm_kb, end)


@contextlib.contextmanager
def _end_of(child: int) -> Iterator[list[int]]:
    """What can be read once the child has ended; nothing where the system has no such thing."""
    try:
        handle = os.pidfd_open(child)
    except (AttributeError, OSError):
        yield []
        return
    try:
        yield [handle]
    finally:
        os.close(handle)


def _watched(link: socket.socket, child: int, job: dict, warm_kb: int, end: list[int]) -> str:
    next_look = time.monotonic()
    wait = WATCH_SECONDS if end else POLL_SECONDS
    while True:
        # After the child has ended its orphans are ours to reap, but the child decides.
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return _how(status)
        if link in select.select([link, *end], [], [], wait)[0]:
            if not link.recv(MESSAGE):  # whoever started us has gone
                watch.kill_all(child)
                os._exit(0)
            return "stopped"
        if time.monotonic() >= next_look:
            next_look = time.monotonic() + WATCH_SECONDS
            why = watch.excess(job["processes"], job["memory_mb"], warm_kb)
            if why:
                return why


def _how(status: int) -> str:
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
    if code <= 128:
        return f"it ended with exit status {code}" if code else ""
    try:
        return f"it was ended by {signal.Signals(code - 128).name}"
    except ValueError:
        return f"it ended with exit status {code}"


if __name__ == "__main__":
    main()
