"""Which rung of the ladder this machine offers, found by trying, and the warm processes on it.

bubblewrap; else landlock with resource limits; else limits alone, with a warning that every report
repeats. macOS has limits alone.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import socket
import sys
import threading
from typing import Any

from grader.catalog import Lab
from grader.grading import landlock, view
from grader.grading.limits import Limits
from grader.grading.warm import Answer, BoxError, Warm
from grader.paths import LABS, ROOT

RUNGS = ("bubblewrap", "landlock", "limits")
TRUSTED = "trusted"
IDLE = 8
UNSANDBOXED = (
    "UNSANDBOXED: this machine offers neither bubblewrap nor landlock, so the submission ran with "
    "your own rights, limited in time and memory only. Grade on Linux with bubblewrap installed "
    "(`apt-get install bubblewrap`), or read the code first."
)


class Sandbox:
    """Warm processes by lab, started when first needed; safe to use from several threads."""

    def __init__(self, rung: str = "") -> None:
        self.rung = rung
        self.tried: list[str] = []  # why each higher rung cannot be used, one sentence each
        self._idle: dict[str, list[Warm]] = {}
        self._lock = threading.Lock()
        self._probing = threading.Lock()
        self._judging = threading.Lock()

    @classmethod
    def open(cls, rung: str = "") -> Sandbox:
        """A sandbox; `rung` forces one of RUNGS, and fails where that one does not hold."""
        return cls(rung)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def probe(self, lab: Lab) -> str:
        """Find the highest rung that holds, by sending a process to break out; its name."""
        with self._probing:
            if not self.rung:
                self.rung = next(rung for rung in RUNGS if self._holds(rung, lab))
        return self.rung

    @property
    def warnings(self) -> list[str]:
        return [UNSANDBOXED, *self.tried] if self.rung == "limits" else []

    def run(self, lab: Lab, task: dict[str, Any], limits: Limits, seconds: float) -> Answer:
        """One piece of a submission's work inside the box."""
        return self._run(self.probe(lab), lab, task, limits, seconds)

    def trusted(self, task: dict[str, Any], limits: Limits, seconds: float) -> Answer:
        """Work that no student's code takes part in: scenarios on the reference."""
        with self._judging:  # one warm process is enough: its work is a small part of the whole
            return self._run(TRUSTED, None, task, limits, seconds)

    def close(self) -> None:
        """End all idle warm processes."""
        with self._lock:
            warm = [one for idle in self._idle.values() for one in idle]
            self._idle.clear()
        for one in warm:
            one.close()

    def _run(
        self, rung: str, lab: Lab | None, task: dict[str, Any], limits: Limits, seconds: float
    ) -> Answer:
        key = lab.key if lab else TRUSTED
        for last in (False, True):
            warm = self._take(key) or Warm(rung, lab)
            try:
                answer = warm.run(task, limits, seconds)
            except BoxError:
                if last:
                    raise
                continue
            self._give_back(key, warm)
            return answer
        raise AssertionError("unreachable")

    def _take(self, key: str) -> Warm | None:
        with self._lock:
            idle = self._idle.get(key)
            return idle.pop() if idle else None

    def _give_back(self, key: str, warm: Warm) -> None:
        with self._lock:
            self._idle.setdefault(key, []).append(warm)
            others = [k for k in self._idle if k not in (key, TRUSTED) and self._idle[k]]
            count = sum(len(idle) for idle in self._idle.values())
            spare = self._idle[others[0]].pop() if others and count > IDLE else None
        if spare:
            spare.close()

    def _holds(self, rung: str, lab: Lab) -> bool:
        why = _missing(rung)
        warm = None
        if not why:
            try:
                warm = Warm(rung, lab)
                why = _break_out(warm, lab)
            except BoxError as error:
                why = str(error)
        if rung == "limits" and warm:
            why = ""  # it confines nothing, and says so
        if why:
            self.tried.append(f"{rung} cannot be used: {why}")
            if warm:
                warm.close()
        elif warm:
            self._give_back(lab.key, warm)
        return not why


def _missing(rung: str) -> str:
    if rung == "limits":
        return ""
    if sys.platform != "linux":
        return "it is there on Linux only"
    if rung == "bubblewrap" and not shutil.which("bwrap"):
        return "bwrap is not installed (`apt-get install bubblewrap`)"
    if rung == "landlock" and landlock.version() < 1:
        return "this kernel has no landlock"
    return ""


def _break_out(warm: Warm, lab: Lab) -> str:
    """What a process in the box could do that it must not; "" when nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        task = {
            "kind": "probe",
            "files": {},
            "code": lab.key,
            "must_not_read": [str(path) for path in view.forbidden(lab)],
            "must_not_write": [str(ROOT), str(LABS), "/usr", "/var/tmp"],
            "grader": os.getpid(),
            "port": server.getsockname()[1],
        }
        answer = warm.run(task, Limits(), 30)
    found = [event["possible"] for event in answer.events if "possible" in event]
    if not found:
        crash = [
            event["crash"].strip().splitlines()[-1] for event in answer.events if "crash" in event
        ]
        return f"its probe did not run ({'; '.join(crash) or answer.ended})"
    return f"a process in it could {', '.join(found[0])}" if found[0] else ""


@functools.cache
def shared() -> Sandbox:
    """The sandbox of this process, for callers that open none of their own."""
    sandbox = Sandbox()
    atexit.register(sandbox.close)
    return sandbox
