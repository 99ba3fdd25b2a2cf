"""The grader's end of a fork server: start it, ask it for workers, keep those that are idle."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading

from grader.course.lab_toml import Lab
from grader.course.paths import ROOT
from grader.sandbox.bwrap_command import bubblewrap, environment
from grader.sandbox.job import BoxError
from grader.sandbox.own_user import rights
from grader.sandbox.worker import Worker

START_SECONDS = 180
ANSWER_SECONDS = 30


class ForkServer:
    """One template, which takes seconds to start, and its forks, which take none.

    The fork server starts with the object; the first `take` waits for it. Safe to use from several
    threads. user: the number of the system's user that it runs as; None: our own.
    """

    def __init__(self, level: str, lab: Lab | None, user: int | None = None) -> None:
        self.level, self.lab, self.user = level, lab, user
        self.busy = 0  # workers that are in somebody's hands
        self._idle: list[Worker] = []
        self._lock = threading.Lock()
        self._started = False
        here, there = socket.socketpair()
        command = [
            sys.executable,
            "-m",
            "grader.sandbox.forkserver_main",
            str(there.fileno()),
            level,
        ]
        command.append(lab.key if lab else "")
        if level == "bubblewrap":
            assert lab is not None
            command = [*bubblewrap(lab), *command]
        variables = environment(lab)
        if level != "bubblewrap":
            variables |= {"HOME": tempfile.gettempdir(), "TMPDIR": tempfile.gettempdir()}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        with there:
            self._process = subprocess.Popen(
                command, pass_fds=[there.fileno()], env=variables, cwd=ROOT,
                stdin=subprocess.DEVNULL, stdout=self._errors, stderr=self._errors, **rights(user),
            )  # fmt: skip
        self._link = here

    def take(self) -> Worker:
        """A worker that does nothing yet; BoxError where there can be none."""
        with self._lock:
            if not self._idle:
                self._idle.append(self._fork())
            self.busy += 1
            return self._idle.pop()

    def give_back(self, worker: Worker | None) -> None:
        """Take back what `take` gave; None when it was lost."""
        with self._lock:
            self.busy -= 1
            if worker is not None:
                self._idle.append(worker)

    def _fork(self) -> Worker:
        if not self._started:
            self._link.settimeout(START_SECONDS)
            self._hear(self._link)
            self._link.settimeout(ANSWER_SECONDS)
            self._started = True
        here, there = socket.socketpair()
        with there:
            try:
                socket.send_fds(self._link, [b"fork"], [there.fileno()])
            except OSError as error:
                raise BoxError(f"the fork server ({self.level}) has gone: {error}") from None
        here.settimeout(ANSWER_SECONDS)
        ends = self._hear(self._link)
        self._hear(here)
        here.settimeout(None)
        end = ends[1] if ends[1:] else None
        return Worker(self.level, self.lab, here, ends[0], end, self.user)

    def _hear(self, link: socket.socket) -> list[int]:
        """The number in the next word on a link, if it names one, and the handle that came."""
        handles: list[int] = []
        with contextlib.suppress(OSError):
            word, handles, _, _ = socket.recv_fds(link, 4096, 1)
            if word:
                return [json.loads(word).get("pid", 0), *handles]
        for handle in handles:
            os.close(handle)
        raise BoxError(f"the fork server ({self.level}) did not start or has gone: {self.said()}")

    def said(self) -> str:
        """The end of what the fork server and its forks wrote to their standard error."""
        if self._errors.closed:
            return ""
        self._errors.seek(0)
        return self._errors.read()[-600:].decode("utf-8", "replace").strip()

    def close(self) -> None:
        """End the fork server and the idle workers; what those have forked ends with them."""
        with self._lock:
            for worker in self._idle:
                worker.close()
            self._idle.clear()
            self._link.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(ANSWER_SECONDS)
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            self._errors.close()
