"""A worker: a fork of the fork server that forks one child for each piece of work.

It never looks at a submission itself: it hands an open socket to a fork of itself, over which the
child gets its work and sends its events, and says when and how that child has ended.
"""

from __future__ import annotations

import functools
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable

from grader.sandbox import memory_use
from grader.sandbox.job_main import run
from grader.sandbox.namespaces import fork_apart, own_users
from grader.sandbox.process_rights import adopt_orphans

POLL_SECONDS = 0.01
WATCH_SECONDS = 0.1
MESSAGE = 65536


def serve(link: socket.socket, level: str) -> None:
    """Do one piece of work after the other, until `link` is closed on the other side."""
    adopt_orphans()
    if level == "bubblewrap":
        own_users()
    link.sendall(b'{"ready": true}')
    warm_kb = memory_use.memory_kb(os.getpid()) if sys.platform == "linux" else 0
    while True:
        message, handles, _, _ = socket.recv_fds(link, MESSAGE, 1)
        if not message:
            return
        if handles:  # else it is a "stop" for what had ended by itself
            _work(link, json.loads(message), handles[0], level, warm_kb)


def _work(link: socket.socket, job: dict, events: int, level: str, warm_kb: int) -> None:
    become = functools.partial(_become_child, link, events, level, job)
    child = fork_apart(become) if level == "bubblewrap" else _fork(become)
    os.close(events)
    end = memory_use.end_of(child)
    socket.send_fds(link, [json.dumps({"pid": child}).encode()], end)
    try:
        ended = _follow(link, child, job, warm_kb, end)
    finally:
        memory_use.kill_all(child)
    link.sendall(json.dumps({"ended": ended}).encode())


def _fork(become: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        become()
    return child


def _become_child(link: socket.socket, events: int, level: str, job: dict) -> None:
    status = 1
    try:
        link.close()
        os.setsid()
        run(events, level, job)
        status = 0
    except BaseException:
        os.write(events, json.dumps({"crash": traceback.format_exc()[-2000:]}).encode() + b"\n")
    finally:
        os._exit(status)


def _follow(link: socket.socket, child: int, job: dict, warm_kb: int, end: list[int]) -> str:
    """Wait for the child's end; "" when it exited by itself with status 0."""
    try:
        return _watched(link, child, job, warm_kb, end)
    finally:
        for handle in end:
            os.close(handle)


def _watched(link: socket.socket, child: int, job: dict, warm_kb: int, end: list[int]) -> str:
    next_look = time.monotonic() + WATCH_SECONDS
    wait = WATCH_SECONDS if end else POLL_SECONDS
    while True:
        # After the child has ended its orphans are ours to reap, but the child decides.
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return _how(status)
        if link in select.select([link, *end], [], [], wait)[0]:
            if not link.recv(MESSAGE):  # whoever started us has gone
                memory_use.kill_all(child)
                os._exit(0)
            return "stopped"
        if time.monotonic() >= next_look:
            next_look = time.monotonic() + WATCH_SECONDS
            why = memory_use.excess(job["processes"], job["memory_mb"], warm_kb)
            why = why or memory_use.disk_excess(job["scratch"], job["disk_mb"])
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
