"""A limit on how long a request may take, and how long a server may take to stop."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from nanovllm.serving.stream import Stream

Cancel = Callable[[Stream, str], None]


class Timer(Protocol):
    """The part of an event loop that is used here."""

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: object
    ) -> "Handle": ...


class Handle(Protocol):
    """What call_later returns."""

    def cancel(self) -> None: ...


@contextmanager
def deadline(loop: Timer, seconds: float | None, cancel: Cancel, stream: Stream) -> Iterator[None]:
    """Cancel `stream` with reason "timeout" after so many seconds, unless the block ends before.

    The stream then ends as soon as the engine has heard of it, and its reader keeps what came
    until then. None sets no limit; no timer outlives the block.
    """
    raise NotImplementedError("lab07 task 4: deadline")


async def drain(
    streams: Callable[[], list[Stream]],
    cancel: Cancel,
    seconds: float,
    sleep: Callable[[float], object] = asyncio.sleep,
    tick: float = 0.05,
) -> int:
    """Wait until no stream is open, at most so many seconds; then give up those that are left.

    It looks every `tick` seconds. The streams given up get the reason "shutdown"; their number is
    returned. `sleep` is awaited.
    """
    raise NotImplementedError("lab07 task 4: drain")
