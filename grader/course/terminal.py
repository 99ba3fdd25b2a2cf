"""The terminal: a console for both streams, questions, and single keys without Enter."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from rich.console import Console

from grader.course.errors import LabError

if sys.platform != "win32":  # there: no single keys, everything else works
    import termios
    import tty


def drop_empty_width() -> None:
    """Take a COLUMNS of 0 or less for one that is not set: nothing could be shown in it."""
    with suppress(ValueError):
        if int(os.environ.get("COLUMNS", "")) <= 0:
            del os.environ["COLUMNS"]


def console() -> Console:
    return Console(highlight=False)


def warn(text: str) -> None:
    """One sentence on the error stream."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(text, style="yellow", markup=False)


def ask(question: str) -> bool:
    """Yes or no, no being the default; with nobody there to answer it refuses."""
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        print()
        raise LabError("nobody answered, so nothing was done; --yes answers for you.") from None


class Keys:
    """Single key presses of the terminal; its settings come back however the block is left."""

    def __init__(self) -> None:
        self.descriptor = -1
        with suppress(OSError, ValueError, AttributeError):  # a closed or replaced stdin
            if sys.stdin.isatty() and sys.platform != "win32":
                self.descriptor = sys.stdin.fileno()
        self._saved: list | None = None
        self._handlers: dict[int, Any] = {}

    @property
    def available(self) -> bool:
        return self.descriptor >= 0

    def __enter__(self) -> Keys:
        if self.available:
            self._saved = termios.tcgetattr(self.descriptor)
            self._single()
            self._handlers[signal.SIGCONT] = signal.signal(signal.SIGCONT, self._single)
        for number in (signal.SIGTERM, signal.SIGHUP):
            self._handlers[number] = signal.signal(number, self._leave)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._restore()

    def get(self, seconds: float) -> str:
        """The key pressed within that time, or the empty string."""
        if not self.available:
            time.sleep(seconds)
            return ""
        if not select.select([self.descriptor], [], [], seconds)[0]:
            return ""
        pressed = b""
        with suppress(OSError):  # the terminal went away
            pressed = os.read(self.descriptor, 32)
        if not pressed:
            self.descriptor = -1
        return pressed.decode(errors="replace")[:1]

    @contextmanager
    def lines(self) -> Iterator[None]:
        """Ordinary line input for the length of a question."""
        self._restore()
        try:
            yield
        finally:
            if self.available:
                self._single()

    def _single(self, *_: object) -> None:
        with suppress(termios.error):
            tty.setcbreak(self.descriptor, termios.TCSADRAIN)

    def _restore(self) -> None:
        if self._saved is not None:
            with suppress(termios.error):
                termios.tcsetattr(self.descriptor, termios.TCSADRAIN, self._saved)

    @staticmethod
    def _leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)
