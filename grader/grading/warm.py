"""The grader's end of one warm process: start it, give it work, keep the clock, count the bytes."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grader.catalog import Lab
from grader.grading import view
from grader.grading.boxed import ENVIRONMENT, bubblewrap
from grader.grading.limits import Limits
from grader.grading.scratch import remove
from grader.paths import ROOT

START_SECONDS = 180
ANSWER_SECONDS = 30
CHUNK = 1 << 20
LINE = 1 << 10  # a line of results costs as much of what may be sent as so many bytes


class BoxError(Exception):
    """The warm process could not be started, or has gone: not the student's fault."""


@dataclass
class Answer:
    """The events of one piece of work, and why it ended early ("" when it did not)."""

    events: list[dict[str, Any]] = field(default_factory=list)
    ended: str = ""
    seconds: float = 0.0  # on the clock of the box: without the warm process's own start


class Warm:
    """One warm process; `run` hands it one piece of work at a time."""

    def __init__(self, rung: str, lab: Lab | None) -> None:
        self.rung, self.lab = rung, lab
        here, there = socket.socketpair()
        command = [sys.executable, "-m", "grader.grading.template", str(there.fileno()), rung]
        command.append(lab.key if lab else "")
        if rung == "bubblewrap":
            assert lab is not None
            command = [*bubblewrap(lab), *command]
        environment = {**ENVIRONMENT, "PYTHONPATH": str(ROOT)}
        if rung != "bubblewrap":
            environment |= {"HOME": tempfile.gettempdir(), "TMPDIR": tempfile.gettempdir()}
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        with there:
            self.process = subprocess.Popen(
                command, pass_fds=[there.fileno()], env=environment, cwd=ROOT,
                stdin=subprocess.DEVNULL, stdout=self.errors, stderr=self.errors,
            )  # fmt: skip
        self.link = here
        self.link.settimeout(START_SECONDS)
        if not self._receive():
            said = self._said()
            self.close()
            raise BoxError(f"the warm process ({rung}) did not start: {said}")

    def run(self, task: dict[str, Any], limits: Limits, seconds: float) -> Answer:
        """Do one piece of work within `seconds`; BoxError where the warm process itself is lost."""
        scratch = ""
        if self.rung != "bubblewrap":
            scratch = tempfile.mkdtemp(prefix="grading-")
        start = time.monotonic()
        try:
            answer = self._run(task, limits, seconds, scratch)
            answer.seconds = time.monotonic() - start
            return answer
        except (OSError, ValueError) as error:
            self.close()
            raise BoxError(f"the warm process was lost: {error}") from None
        finally:
            if scratch:
                remove(Path(scratch))

    def _run(self, task: dict[str, Any], limits: Limits, seconds: float, scratch: str) -> Answer:
        job = {
            "seconds": max(1, int(seconds) + 1),
            "memory_mb": limits.memory_mb,
            "disk_mb": limits.disk_mb,
            "processes": limits.processes,
            "scratch": scratch,
        }
        if self.rung == "landlock" and self.lab is not None:
            shown = [*view.machine(), *view.course(self.lab)]
            job["readable"] = [str(path) for path in shown]
        reading, writing = os.pipe()
        try:
            with tempfile.TemporaryFile("w+", encoding="utf-8") as work:
                json.dump(task, work)
                work.flush()
                work.seek(0)
                message = json.dumps(job).encode()
                socket.send_fds(self.link, [message], [work.fileno(), writing])
        finally:
            os.close(writing)
        with os.fdopen(reading, "rb", buffering=0) as pipe:
            return self._listen(pipe, limits, time.monotonic() + seconds)

    def _listen(self, pipe: Any, limits: Limits, deadline: float) -> Answer:
        answer, buffer, left = Answer(), bytearray(), limits.output_mb << 20
        stall = time.monotonic() + limits.item_seconds
        with selectors.DefaultSelector() as both:
            both.register(pipe, selectors.EVENT_READ)
            both.register(self.link, selectors.EVENT_READ)
            while True:
                now = time.monotonic()
                why = self._too_long(now, stall, deadline, limits)
                if why or left < 0:
                    answer.ended = why or f"it sent more than {limits.output_mb} MB of results"
                    self._stop()
                    return answer
                ready = {key.fileobj for key, _ in both.select(max(0, min(stall, deadline) - now))}
                if pipe in ready:
                    chunk = pipe.read(CHUNK)
                    buffer += chunk
                    *lines, buffer = buffer.split(b"\n") if b"\n" in chunk else [buffer]
                    left -= len(chunk) + LINE * len(lines)
                    stall = now + limits.item_seconds if lines else stall
                    answer.events += [event for line in lines if (event := _event(line))]
                    if not chunk:
                        both.unregister(pipe)
                elif self.link in ready:  # everything of the child is dead, and the pipe is empty
                    answer.ended = self._answer()
                    return answer

    @staticmethod
    def _too_long(now: float, stall: float, deadline: float, limits: Limits) -> str:
        if now >= deadline:
            return f"the submission used up its {limits.seconds} seconds"
        if now >= stall:
            return f"it took more than {limits.item_seconds} seconds"
        return ""

    def _stop(self) -> None:
        self.link.sendall(b"stop")
        self.link.settimeout(ANSWER_SECONDS)
        self._answer()

    def _answer(self) -> str:
        """How the work ended; OSError where the warm process has no answer."""
        word = self._receive()
        if "ended" not in word:
            raise OSError(f"it fell silent; it said: {self._said()}")
        return word["ended"]

    def _said(self) -> str:
        """The end of what the warm process wrote to its standard error."""
        self.errors.seek(0)
        return self.errors.read()[-600:].decode("utf-8", "replace").strip()

    def _receive(self) -> dict[str, Any]:
        """The warm process's next word; {} when there is none."""
        try:
            data = self.link.recv(65536)
        except OSError:
            return {}
        return json.loads(data) if data else {}

    def close(self) -> None:
        """End the warm process; what it has forked ends with it."""
        self.link.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(ANSWER_SECONDS if self.process.poll() is None else 0)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.errors.close()


def _event(line: bytes | bytearray) -> dict[str, Any] | None:
    """One line as an event; what is none, a cheat's or a torn one, is nothing."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None
