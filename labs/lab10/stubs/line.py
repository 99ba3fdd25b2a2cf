"""`Line`: whole messages of bytes between the driver and one rank (given)."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, cast


class LineError(RuntimeError):
    """A line that carries nothing any more."""


class LineClosed(LineError):
    """The other end is closed, or its process is gone."""


class LineTimeout(LineError):
    """The other end is there, but does not read, or says nothing."""


class Line:
    """One end of a line: what one end sends, the other receives, whole and in order.

    `sent` and `bytes_sent` count the messages of this end, `received` those that came here.
    patience: seconds that one message may take on its way, for a rank that was stopped does not
    read; 0 for no limit.

    >>> here, there = make_line()
    >>> here.send(b"one")
    >>> here.send(b"two")
    >>> there.receive(), there.receive(timeout=1), here.sent, there.received
    (b'one', b'two', 2, 2)
    >>> here.close()
    >>> there.receive()
    Traceback (most recent call last):
    ...
    nanovllm.parallel.line.LineClosed: the other end of the line is closed.
    """

    def __init__(self, end: socket.socket, patience: float = 30.0) -> None:
        limit = struct.pack("ll", int(patience), int(patience % 1 * 1e6))
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            end.setsockopt(socket.SOL_SOCKET, option, limit)
        self._connection = Connection(end.detach())
        self.sent = self.received = self.bytes_sent = 0

    @property
    def closed(self) -> bool:
        """Whether this end is closed."""
        return self._connection.closed

    def fileno(self) -> int:
        """By which `ready` waits for it."""
        return self._connection.fileno()

    def send(self, data: bytes) -> None:
        """Send a message. Raises LineClosed, or LineTimeout: then a part of it may be gone."""
        try:
            self._connection.send_bytes(data)
        except BlockingIOError:
            raise LineTimeout("the other end of the line does not read.") from None
        except (OSError, ValueError):
            raise LineClosed("the other end of the line is closed.") from None
        self.sent += 1
        self.bytes_sent += len(data)

    def receive(self, timeout: float | None = None) -> bytes:
        """The next message, waiting for it as long as it takes, or so many seconds.

        Raises LineClosed when no message is left and none can come; LineTimeout.
        """
        try:
            if not self._connection.poll(timeout):
                raise LineTimeout(f"nothing came within {timeout:g} s.")
            data = self._whole()
        except BlockingIOError:
            raise LineTimeout("half a message came, and then nothing.") from None
        except (EOFError, OSError, ValueError):
            raise LineClosed("the other end of the line is closed.") from None
        self.received += 1
        return data

    def _whole(self) -> bytes:
        try:
            return self._connection.recv_bytes()
        except KeyboardInterrupt:
            self.close()  # the half that was read is lost, and with it where the next one begins
            raise

    def cut(self) -> None:
        """What the end of a process does to its line: both ends are closed for whoever uses them.

        May be called in any thread, also while another one waits for a message.
        """
        with socket.socket(fileno=os.dup(self.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this end: the other one reads what was sent, and then LineClosed."""
        if not self._connection.closed:
            self._connection.close()


def make_line(patience: float = 30.0) -> tuple[Line, Line]:
    """Both ends of a new line."""
    here, there = socket.socketpair()
    return Line(here, patience), Line(there, patience)


def ready(lines: Sequence[Line], timeout: float | None = None) -> list[Line]:
    """Those lines that have a message, or are closed at the other end; [] after the timeout."""
    return cast(list[Line], wait(cast(Any, lines), timeout))  # anything with a `fileno` serves
