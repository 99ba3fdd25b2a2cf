"""An event loop in which time passes only while everybody sleeps: hours in milliseconds (given)."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jump(selectors.DefaultSelector):
    """Where a loop would wait, its clock goes forward instead."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list:
        if timeout is None:
            raise RuntimeError("Everybody waits, and nobody for a timer: this would never end.")
        self.now += max(timeout, 0.0)
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Its clock stands still while anything can run, then jumps to the next timer.

    For coroutines that wait for timers and for each other alone, not for threads or sockets.
    """

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        """Seconds since the start of the loop, as its sleepers count them."""
        return self._jump.now


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in virtual time, from second 0.

    >>> async def nap() -> float:
    ...     await asyncio.sleep(3600)
    ...     return asyncio.get_running_loop().time()
    >>> run_virtual(nap())
    3600.0
    """
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
