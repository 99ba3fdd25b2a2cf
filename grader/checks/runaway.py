"""A check that does not end is stopped: by processor time, so that a slow machine changes nothing.

A loop uses the processor, a wait does not. After the first stop in a function the other checks wait
less for the same one.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from pytest_timeout import is_debugging

from grader.checks.card import DoesNotEnd, shown_path
from grader.checks.plugin_session import LabSession
from grader.checks.unwritten import is_students

LOOP_SECONDS = 20.0  # of the processor, for the thread that runs the check: most need one or less
LOAD_SECONDS = 40.0  # to load a file, and with it torch
WORK_SECONDS = 0.5  # a process that uses less of the processor for long (`runaway_seconds`) waits
AGAIN = 0.25  # the share of these times for a function that did not end in a check before
TICK = 0.25


class Stopping:
    """pytest-timeout's clock for checks; without the signal that it needs, theirs is used."""

    def __init__(self, session: LabSession) -> None:
        self.session = session
        self.stopped: set[str] = set()
        self.patience = 0.0  # seconds, more of them on a busy machine
        self.loop = LOOP_SECONDS
        self.began = self.all_began = self.at = 0.0  # this thread's, all threads' and wall time
        self.worked = self.waits_since = 0.0

    @pytest.hookimpl(optionalhook=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> bool | None:
        if self.session.info(item) is None or not _can_look():
            return None
        self._watch(settings.timeout)
        return True

    @pytest.hookimpl(optionalhook=True)
    def pytest_timeout_cancel_timer(self, item: pytest.Item) -> bool | None:
        if self.session.info(item) is None or not hasattr(signal, "setitimer"):
            return None
        self._leave()
        return True

    @contextmanager
    def loading(self, patience: float) -> Iterator[None]:
        """Around the loading of a file, which may run a loop that stands outside of functions."""
        if not _can_look():
            yield
            return
        self._watch(patience, LOAD_SECONDS)
        try:
            yield
        finally:
            self._leave()

    def _watch(self, patience: float, loop: float = LOOP_SECONDS) -> None:
        self.patience, self.loop = patience, loop
        self._begin()
        signal.signal(signal.SIGALRM, self._look)
        signal.setitimer(signal.ITIMER_REAL, TICK)

    def _leave(self) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)  # first: a last look sets the next tick
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def _begin(self) -> None:
        self.began = time.thread_time()
        self.all_began = self.worked = time.process_time()
        self.at = self.waits_since = time.monotonic()

    def _look(self, number: int, frame: FrameType | None) -> None:
        try:
            why = self._why(frame)
            if why and is_debugging():  # asked last: where a check traces, it reads all modules
                self._begin()
            elif why:
                self._stop(frame, why)
        finally:  # not earlier: on a busy machine one look would begin within another
            signal.setitimer(signal.ITIMER_REAL, TICK)

    def _why(self, frame: FrameType | None) -> str:
        """Why it has to stop, "" as long as it has not."""
        now, worked = time.monotonic(), time.process_time()
        if worked - self.worked > WORK_SECONDS:
            self.worked, self.waits_since = worked, now
        loops, waits = time.thread_time() - self.began, now - self.waits_since
        share = AGAIN if self.stopped and _called(frame) in self.stopped else 1.0
        if loops > share * self.loop:
            return f"did not end in {loops:.0f} s of processor time"
        if waits > share * self.patience:
            return f"waits: nothing has happened for {waits:.0f} s"
        if now - self.at > self.patience and worked - self.all_began > self.loop:
            return "did not end, while another thread was at work"
        return ""

    def _stop(self, frame: FrameType | None, why: str) -> None:
        self.stopped.add(_called(frame))
        here = threading.get_ident()
        others = [_at(other) for key, other in sys._current_frames().items() if key != here]
        places = [_at(frame), *(f"another thread is in {place}" for place in others if place)]
        raise DoesNotEnd("; ".join([why, *filter(None, places)]))


def _can_look() -> bool:
    main = threading.current_thread() is threading.main_thread()
    return main and hasattr(signal, "setitimer")


def left_behind() -> list[str]:
    """Where the student's threads are that keep the process from ending."""
    frames = sys._current_frames()
    threads = [one for one in threading.enumerate() if one is not threading.main_thread()]
    return [at for one in threads if not one.daemon and (at := _at(frames.get(one.ident or 0)))]


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
