"""An event loop in virtual time: nobody waits, and what happens depends on nothing else."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

MOST_SECONDS = 10_000.0


class _Skips(selectors.SelectSelector):
    """Where a loop would wait, its clock moves on."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found and timeout != 0:
            if timeout is None:
                raise RuntimeError("everybody waits, and nothing will ever happen")
            self.loop.now += timeout
            if self.loop.now > MOST_SECONDS:
                raise RuntimeError(f"{MOST_SECONDS:g} seconds have passed, and it goes on")
        return found


class _AtOnce(ThreadPoolExecutor):
    """What is given to a thread is done at once: threads have no order."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **more: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **more))
        except Exception as error:
            done.set_exception(error)
        return done


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time()` is `now`; `advance` lets time pass within a step."""

    def __init__(self) -> None:
        selector = _Skips()
        selector.loop = self
        self.now = 0.0
        super().__init__(selector)
        self.set_default_executor(_AtOnce())

    def time(self) -> float:
        return self.now

    def __call__(self) -> float:
        """As a clock."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Somebody keeps the processor for so long."""
        self.now += seconds


def run(main: Callable[[VirtualLoop], Any]) -> Any:
    """`main(loop)`, a coroutine function, to its end."""
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(main(loop))
    finally:
        asyncio.set_event_loop(None)
        loop.close()
