"""A limit on how long a request may take, and how long a server may take to stop."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator
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
    """For a `with`: calls `cancel(stream, "timeout")` unless the block ends within so many seconds.

    The block goes on all the same: the stream ends as soon as the engine has heard of it, and its
    reader keeps what came until then. Nothing is called after the block has ended, however it
    ends. None sets no limit, 0 does.
    """
    ### BEGIN SOLUTION
    if seconds is None:
        yield
        return
    timer = loop.call_later(seconds, cancel, stream, "timeout")
    try:
        yield
    finally:
        timer.cancel()
    ### END SOLUTION


async def drain(
    streams: Callable[[], Collection[Stream]],
    cancel: Cancel,
    seconds: float,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    tick: float = 0.05,
) -> int:
    """Wait until no stream is open, for at most so many seconds; then cancel those that are left.

    `streams()` gives those that are open at the moment of the call, each once. To wait is to
    `await sleep(...)` again and again, at most `tick` seconds each time, and nothing else. The wait
    ends at most a tick after the last stream has ended, and at most a tick after `seconds`, where
    the time is the sum of what was slept. Each stream that is left is cancelled once, with the
    reason "shutdown". Returns how many these were, without waiting for their ends.
    """
    ### BEGIN SOLUTION
    waited = 0.0
    while streams() and waited < seconds:
        await sleep(tick)
        waited += tick
    left = list(streams())
    for stream in left:
        cancel(stream, "shutdown")
    return len(left)
    ### END SOLUTION
