"""Signals that end a process: they unwind it as Ctrl-C does, so what it started is stopped too."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextmanager
def unwound_by_signals() -> Iterator[None]:
    """Meanwhile the first SIGTERM or SIGHUP raises SystemExit(128 + number).

    One that is ignored, as SIGHUP is under nohup, stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # which is the only one that may set handlers
        return
    before = {number: signal.getsignal(number) for number in ENDING}
    for number, handler in before.items():
        if handler != signal.SIG_IGN:
            signal.signal(number, _end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, frame: object) -> None:
    for one in ENDING:  # another would cut the way down short
        signal.signal(one, signal.SIG_IGN)
    sys.exit(128 + number)


@contextmanager
def signals_later() -> Iterator[None]:
    """What comes meanwhile is heeded at the end: nothing is raised half way through a start.

    A process started here heeds Ctrl-C, also where this one was told to ignore it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are raised in the main one only
        return
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *ENDING)}
    for number, handler in before.items():
        if handler != signal.SIG_IGN or number == signal.SIGINT:
            signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in came:
        signal.raise_signal(number)
