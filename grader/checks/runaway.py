"""A check that does not end is stopped: by processor time, so that a slow machine changes nothing.

A loop uses the processor, a wait does not. After the first stop in a function the other checks wait
less for the same one.
"""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from pytest_timeout import is_debugging

from grader.checks.card import DoesNotEnd, shown_path
from grader.checks.plugin_session import LabSession
from grader.checks.unwritten import is_students

LOOP_SECONDS = 20.0  # of the processor, for the thread that runs the check: most need one or less
WAIT_SECONDS = 30.0  # in which the whole process has not used WORK_SECONDS of the processor
WORK_SECONDS = 0.5
AGAIN = 0.25  # the share of these times for a function that did not end in a check before
TICK = 0.25


class Stopping:
    """pytest-timeout's clock for checks; without the signal that it needs, theirs is used."""

    def __init__(self, session: LabSession) -> None:
        self.session = session
        self.stopped: set[tuple[str, str]] = set()
        self.began = self.worked = self.waits_since = self.deadline = 0.0

    @pytest.hookimpl(optionalhook=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> bool | None:
        main = threading.current_thread() is threading.main_thread()
        if self.session.info(item) is None or not (main and hasattr(signal, "setitimer")):
            return None
        self.began, self.worked = time.thread_time(), time.process_time()
        self.waits_since = time.monotonic()
        self.deadline = self.waits_since + settings.timeout  # of a loop in another thread
        signal.signal(signal.SIGALRM, self._look)
        signal.setitimer(signal.ITIMER_REAL, TICK, TICK)
        return True

    @pytest.hookimpl(optionalhook=True)
    def pytest_timeout_cancel_timer(self, item: pytest.Item) -> bool | None:
        if self.session.info(item) is None or not hasattr(signal, "setitimer"):
            return None
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        return True

    def _look(self, number: int, frame: FrameType | None) -> None:
        now, spent, worked = time.monotonic(), time.thread_time(), time.process_time()
        if worked - self.worked > WORK_SECONDS:
            self.worked, self.waits_since = worked, now
        if is_debugging(frame):
            self.began, self.waits_since, self.deadline = spent, now, math.inf
            return
        loops, waits = spent - self.began, now - self.waits_since
        share = AGAIN if _called(frame) in self.stopped else 1.0
        if loops > share * LOOP_SECONDS:
            self._stop(frame, f"did not end in {loops:.0f} s of processor time")
        elif waits > share * WAIT_SECONDS:
            self._stop(frame, f"waits: nothing has happened for {waits:.0f} s")
        elif now > self.deadline:
            self._stop(frame, "did not end, while another thread was at work")

    def _stop(self, frame: FrameType | None, why: str) -> None:
        self.stopped.add(_called(frame))
        here = threading.get_ident()
        others = [_at(other) for key, other in sys._current_frames().items() if key != here]
        places = [_at(frame), *(f"another thread is in {place}" for place in others if place)]
        raise DoesNotEnd("; ".join([why, *filter(None, places)]))


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames of the student's code, the innermost first."""
    while frame is not None:
        if is_students(Path(frame.f_code.co_filename)):
            yield frame
        frame = frame.f_back


def _called(frame: FrameType | None) -> str:
    """The student's function that a check has called, "" where it waits in none."""
    return next((f"{one.f_code.co_filename}:{one.f_code.co_qualname}"
                 for one in reversed([*_frames(frame)])), "")  # fmt: skip


def _at(frame: FrameType | None) -> str:
    """Where the student's code is."""
    return next((f"{one.f_code.co_qualname} ({shown_path(Path(one.f_code.co_filename))}:"
                 f"{one.f_lineno})" for one in _frames(frame)), "")  # fmt: skip
