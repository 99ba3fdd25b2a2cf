"""The processes on the rung of the ladder that this machine offers."""

from __future__ import annotations

import atexit
import functools
import threading
from typing import Any

from grader.course.lab_toml import Lab
from grader.sandbox.forkserver import Nursery
from grader.sandbox.job import Answer, Answers, BoxError, Work
from grader.sandbox.levels import RUNGS, UNSANDBOXED, break_out, missing
from grader.sandbox.limits import Limits

TRUSTED = "trusted"
KEPT = 3  # labs whose templates are kept for the next submission


class Sandbox:
    """Templates by lab, started when first needed; safe to use from several threads."""

    def __init__(self, rung: str = "") -> None:
        self.rung = rung
        self.tried: list[str] = []  # why each higher rung cannot be used, one sentence each
        self._nurseries: dict[str, Nursery] = {}
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

    def start(self) -> None:
        """Begin to start what every submission needs, while the caller looks for its rung."""
        self._nursery(TRUSTED, None)

    def run(self, lab: Lab, work: Work, limits: Limits, seconds: float) -> Answers:
        """One piece of a submission's work inside the box."""
        return self._run(self.probe(lab), lab, work, limits, seconds)

    def trusted(self, task: dict[str, Any], limits: Limits, seconds: float) -> Answer:
        """Work that no student's code takes part in: scenarios on the reference."""
        with self._judging:  # one warm process is enough: its work is a small part of the whole
            work = Work("reference", [task])
            return self._run(TRUSTED, None, work, limits, seconds).of_tasks[0]

    def close(self) -> None:
        """End all processes; one that is at work ends when whoever uses it closes its link."""
        with self._lock:
            nurseries = [*self._nurseries.values()]
            self._nurseries.clear()
        for nursery in nurseries:
            nursery.close()

    def _run(
        self, rung: str, lab: Lab | None, work: Work, limits: Limits, seconds: float
    ) -> Answers:
        for last in (False, False, True):  # an idle process may be lost, and its template too
            nursery = self._nursery(rung, lab)
            warm = None
            try:
                warm = nursery.take()
                answers = warm.run(work, limits, seconds)
            except BoxError as error:
                if warm is None:
                    self._forget(nursery)
                else:
                    nursery.give_back(None)
                if last:
                    raise BoxError(f"{error} {nursery.said()}".strip()) from None
                continue
            nursery.give_back(warm)
            return answers
        raise AssertionError("unreachable")

    def _nursery(self, rung: str, lab: Lab | None) -> Nursery:
        """The nursery of a lab, started now if there is none."""
        key = f"{rung} {lab.key}" if lab else TRUSTED
        with self._lock:
            found = self._nurseries.pop(key, None) or Nursery(rung, lab)
            self._nurseries[key] = found  # the one that was used last comes last
            others = [k for k, one in self._nurseries.items() if k not in (key, TRUSTED)
                      and not one.busy]  # fmt: skip
            spare = self._nurseries.pop(others[0]) if len(others) >= KEPT else None
        if spare:
            spare.close()
        return found

    def _forget(self, nursery: Nursery) -> None:
        """A template that gives no warm process: the next one that is asked for is a new one."""
        with self._lock:
            lost = [key for key, one in self._nurseries.items() if one is nursery]
            for key in lost:
                del self._nurseries[key]
        if lost:
            nursery.close()

    def _holds(self, rung: str, lab: Lab) -> bool:
        why = missing(rung)
        if not why:
            nursery = self._nursery(rung, lab)
            try:
                warm = nursery.take()
                why = break_out(warm, lab)
                nursery.give_back(warm)
            except BoxError as error:
                why = f"{error} {nursery.said()}".strip()
            if rung == "limits":
                why = ""  # it confines nothing, and says so
            if why:
                self._forget(nursery)
        if why:
            self.tried.append(f"{rung} cannot be used: {why}")
        return not why


@functools.cache
def shared() -> Sandbox:
    """The sandbox of this process, for callers that open none of their own."""
    sandbox = Sandbox()
    atexit.register(sandbox.close)
    return sandbox
