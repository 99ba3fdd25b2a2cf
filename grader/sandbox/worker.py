"""The grader's end of one worker: give it work, keep the clock, count the bytes."""

from __future__ import annotations

import contextlib
import json
import os
import select
import selectors
import signal
import socket
import tempfile
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from grader.course.lab_toml import Lab
from grader.sandbox import cgroup, visible_files
from grader.sandbox.job import Answer, Answers, BoxError, Work
from grader.sandbox.limits import Limits
from grader.sandbox.memory_use import THREADS
from grader.sandbox.scratch_folder import remove

ANSWER_SECONDS = 30
TRUSTED = "trusted"
CHUNK = 1 << 20
DEPTH = 150  # of lists and mappings in an event: an observation has up to 3 x 40
NEST = 100  # bytes that each list or mapping in them costs: empty ones are made of two
LINE = 1 << 10  # a line of results costs as much of what may be sent as so many bytes


class Worker:
    """One worker; `run` hands it one piece of work at a time.

    end: a handle of the process that can be waited for and signalled, where the system has one;
    else its number.
    """

    def __init__(
        self, level: str, lab: Lab | None, link: socket.socket, pid: int, end: int | None
    ) -> None:
        self.level, self.lab, self.link, self.pid, self.end = level, lab, link, pid, end

    def run(self, work: Work, limits: Limits, seconds: float) -> Answers:
        """Do one piece of work within `seconds`; BoxError where the worker itself is lost."""
        scratch = ""
        if self.level != "bubblewrap":
            scratch = tempfile.mkdtemp(prefix="grading-")
        start = time.monotonic()
        try:
            answers = self._run(work, limits, seconds, scratch)
            return Answers(answers, time.monotonic() - start)
        except (OSError, ValueError) as error:
            self.close()
            raise BoxError(f"the worker was lost: {error}") from None
        finally:
            if scratch:
                remove(Path(scratch))

    def _run(self, work: Work, limits: Limits, seconds: float, scratch: str) -> list[Answer]:
        job = {
            "seconds": max(1, int(seconds) + 1),
            "memory_mb": limits.memory_mb,
            "disk_mb": limits.disk_mb,
            "processes": limits.processes,
            "scratch": scratch,
            "locks": self.lab is not None and visible_files.locks_files(self.lab),
        }
        if self.level == "landlock" and self.lab is not None:
            shown = [*visible_files.machine(), *visible_files.course(self.lab)]
            job["readable"] = [str(path) for path in shown]
        ours, theirs = socket.socketpair()
        with ours, _group(self.level, limits) as group:
            with theirs:
                socket.send_fds(self.link, [json.dumps(job).encode()], [theirs.fileno()])
            group.add(self._child())  # which waits for the submission
            ours.settimeout(limits.item_seconds)
            answers = self._listen(ours, work, limits, time.monotonic() + seconds)
            if group.out_of_memory:
                answers[-1].ended = f"it used more than {limits.memory_mb} MB of memory"
            return answers

    def _child(self) -> int:
        """The number, here, of the process that the worker has forked for this work."""
        self.link.settimeout(ANSWER_SECONDS)
        word, handles, _, _ = socket.recv_fds(self.link, 4096, 1)
        self.link.settimeout(None)
        number = json.loads(word)["pid"]
        for handle in handles:
            said = Path(f"/proc/self/fdinfo/{handle}").read_text()
            number = int(said.partition("Pid:")[2].split()[0])
            os.close(handle)
        return number

    def _listen(
        self, events: socket.socket, work: Work, limits: Limits, deadline: float
    ) -> list[Answer]:
        tasks, answers, buffer, left = (
            [*work.tasks],
            [Answer()],
            bytearray(),
            limits.output_mb << 20,
        )
        _send(events, {"code": work.code, "files": work.files})
        _send(events, tasks.pop(0), last=not tasks)
        stall = time.monotonic() + limits.item_seconds
        with selectors.DefaultSelector() as both:
            both.register(events, selectors.EVENT_READ)
            both.register(self.link, selectors.EVENT_READ)
            while True:
                now = time.monotonic()
                why = _too_long(now, stall, deadline, limits)
                if why or left < 0:
                    answers[-1].ended = why or f"it sent more than {limits.output_mb} MB of results"
                    self._stop()
                    return answers
                ready = {key.fileobj for key, _ in both.select(max(0, min(stall, deadline) - now))}
                if events in ready:
                    chunk = _receive(events)
                    buffer += chunk
                    *lines, buffer = buffer.split(b"\n") if b"\n" in chunk else [buffer]
                    left -= len(chunk) + LINE * len(lines)
                    left -= NEST * (chunk.count(b"[") + chunk.count(b"{"))
                    stall = now + limits.item_seconds if lines else stall
                    fresh = [event for line in lines if (event := _event(line))]
                    answers[-1].events += fresh
                    if tasks and any(event.get("done") is True for event in fresh):
                        answers.append(Answer())
                        _send(events, tasks.pop(0), last=not tasks)
                    if not chunk:
                        both.unregister(events)
                elif self.link in ready:  # everything of the child is dead, and nothing is unread
                    answers[-1].ended = self._answer()
                    return answers

    def _stop(self) -> None:
        self.link.sendall(b"stop")
        self.link.settimeout(ANSWER_SECONDS)
        self._answer()

    def _answer(self) -> str:
        """How the work ended; OSError where the worker has no answer."""
        data = self.link.recv(65536)
        word = json.loads(data) if data else {}
        if "ended" not in word:
            raise OSError("it fell silent")
        return word["ended"]

    def close(self) -> None:
        """End the worker; what it has forked ends with it."""
        self.link.close()
        if self.end is None:
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGTERM)
            return
        if not select.select([self.end], [], [], ANSWER_SECONDS)[0]:
            signal.pidfd_send_signal(self.end, signal.SIGKILL)
        os.close(self.end)
        self.end = None


def _group(level: str, limits: Limits) -> AbstractContextManager[cgroup.Group]:
    """The control group of one piece of work; none around the reference's own."""
    if level == TRUSTED:
        return contextlib.nullcontext(cgroup.Group([]))
    memory = limits.memory_mb + 2 * limits.disk_mb + cgroup.OWN_MB  # its two folders are memory
    return cgroup.group(memory, limits.processes * THREADS)


def _send(events: socket.socket, message: dict[str, Any], last: bool = False) -> None:
    """Send a line to the child; what a child that has ended or does not read misses is its loss."""
    with contextlib.suppress(OSError):
        events.sendall(json.dumps(message).encode() + b"\n")
        if last:
            events.shutdown(socket.SHUT_WR)


def _receive(events: socket.socket) -> bytes:
    """What has come; nothing once every process of the submission has closed its end."""
    try:
        return events.recv(CHUNK)
    except ConnectionError:
        return b""


def _too_long(now: float, stall: float, deadline: float, limits: Limits) -> str:
    if now >= deadline:
        return f"the submission used up its {limits.seconds} seconds"
    if now >= stall:
        return f"it took more than {limits.item_seconds} seconds"
    return ""


def _event(line: bytes | bytearray) -> dict[str, Any] | None:
    """One line as an event; what is none, a cheat's or a torn one, is nothing."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and _is_shallow(event) else None


def _is_shallow(event: dict[str, Any]) -> bool:
    """Whether whoever passes an event on can write and read it again: `DEPTH` levels at most."""
    level: list[Any] = [event]
    for _ in range(DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return True
    return False
