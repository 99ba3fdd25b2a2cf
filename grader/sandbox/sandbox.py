"""The processes on the level of confinement that this machine offers."""

from __future__ import annotations

import atexit
import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

from grader.course.lab_toml import Lab
from grader.sandbox import cgroup
from grader.sandbox.forkserver import ForkServer
from grader.sandbox.job import Answer, Answers, BoxError, Work
from grader.sandbox.levels import LEVELS, UNSANDBOXED, break_out, missing
from grader.sandbox.limits import Limits
from grader.sandbox.talk import Talk
from grader.sandbox.worker import TRUSTED, Worker

KEPT = 3  # labs whose fork servers are kept for the next submission


class Sandbox:
    """Fork servers by lab, started when first needed; safe to use from several threads."""

    def __init__(self, level: str = "", user: int | None = None) -> None:
        self.level, self.user = level, user
        self.tried: list[str] = []  # why each higher level cannot be used, one sentence each
        self._servers: dict[str, ForkServer] = {}
        self._lock = threading.Lock()
        self._probing = threading.Lock()
        self._judging = threading.Lock()

    @classmethod
    def open(cls, level: str = "", user: int | None = None) -> Sandbox:
        """A sandbox; `level` forces one of LEVELS, and fails where that one does not hold.

        user: the number of the system's user that submissions run as, for a grader that is root;
        the reference's own work stays root's.
        """
        return cls(level, user)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def probe(self, lab: Lab) -> str:
        """Find the highest level that holds, by sending a process to break out; its name."""
        with self._probing:
            if not self.level:
                self.level = next(level for level in LEVELS if self._holds(level, lab))
        return self.level

    @property
    def warnings(self) -> list[str]:
        if self.level == "limits":
            return [UNSANDBOXED, *self.tried]
        return [cgroup.UNCOUNTED] if cgroup.missing() else []

    def start(self) -> None:
        """Begin to start what every submission needs, while the caller looks for its level."""
        self._server(TRUSTED, None)

    def run(self, lab: Lab, work: Work, limits: Limits, seconds: float) -> Answers:
        """One piece of a submission's work inside the box."""
        return self._run(self.probe(lab), lab, work, limits, seconds)

    @contextlib.contextmanager
    def opened(
        self, lab: Lab, work: Work, limits: Limits, seconds: float
    ) -> Iterator[tuple[Talk, Worker]]:
        """A process inside the box that waits for tasks; BoxError where it cannot be had."""
        server = self._server(self.probe(lab), lab)
        try:
            worker = server.take()
        except BoxError:
            self._forget(server)
            raise
        kept = None
        try:
            with worker.opened(work, limits, seconds) as talk:
                yield talk, worker
            kept = worker
        finally:
            server.give_back(kept)

    def trusted(self, task: dict[str, Any], limits: Limits, seconds: float) -> Answer:
        """Work that no student's code takes part in: scenarios on the reference."""
        with self._judging:  # one worker is enough: its work is a small part of the whole
            work = Work("reference", [task])
            return self._run(TRUSTED, None, work, limits, seconds).of_tasks[0]

    def close(self) -> None:
        """End all processes; one that is at work ends when whoever uses it closes its link."""
        with self._lock:
            servers = [*self._servers.values()]
            self._servers.clear()
        for server in servers:
            server.close()

    def _run(
        self, level: str, lab: Lab | None, work: Work, limits: Limits, seconds: float
    ) -> Answers:
        for last in (False, False, True):  # an idle process may be lost, and its fork server too
            server = self._server(level, lab)
            worker = None
            try:
                worker = server.take()
                answers = worker.run(work, limits, seconds)
            except BoxError as error:
                if worker is None:
                    self._forget(server)
                else:
                    server.give_back(None)
                if last:
                    raise BoxError(f"{error} {server.said()}".strip()) from None
                continue
            server.give_back(worker)
            return answers
        raise AssertionError("unreachable")

    def _server(self, level: str, lab: Lab | None) -> ForkServer:
        """The fork server of a lab, started now if there is none."""
        key = f"{level} {lab.folder}" if lab else TRUSTED
        with self._lock:
            user = self.user if lab else None
            found = self._servers.pop(key, None) or ForkServer(level, lab, user)
            self._servers[key] = found  # the one that was used last comes last
            others = [k for k, one in self._servers.items() if k not in (key, TRUSTED)
                      and not one.busy]  # fmt: skip
            spare = self._servers.pop(others[0]) if len(others) >= KEPT else None
        if spare:
            spare.close()
        return found

    def _forget(self, server: ForkServer) -> None:
        """A fork server that gives no worker: the next one that is asked for is a new one."""
        with self._lock:
            lost = [key for key, one in self._servers.items() if one is server]
            for key in lost:
                del self._servers[key]
        if lost:
            server.close()

    def _holds(self, level: str, lab: Lab) -> bool:
        why = missing(level)
        if not why:
            server = self._server(level, lab)
            try:
                worker = server.take()
                why = break_out(worker, lab)
                server.give_back(worker)
            except BoxError as error:
                why = f"{error} {server.said()}".strip()
            if level == "limits":
                why = ""  # it confines nothing, and says so
            if why:
                self._forget(server)
        if why:
            self.tried.append(f"{level} cannot be used: {why}")
        return not why


@functools.cache
def shared() -> Sandbox:
    """The sandbox of this process, for callers that open none of their own."""
    sandbox = Sandbox()
    atexit.register(sandbox.close)
    return sandbox
