"""A TCP proxy that cuts, delays and drips: a network on a bad day, in a thread of its own."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from typing import Self


class FlakyProxy:
    """Passes bytes on to `port`. Of the answers' pieces each is late by `late` seconds and comes
    `drip` bytes at a time (0: whole); the answer to a POST is cut after `cuts()` bytes (None: not).

    `cut_all()`: every connection ends now. `cuts_made`: how often it has cut. `frozen`: while it is
    true, connections are taken and no answer passes, as with a process that was stopped.
    """

    def __init__(
        self,
        port: int,
        cuts: Callable[[], int | None] = lambda: None,
        late: float = 0.0,
        drip: int = 0,
    ) -> None:
        self.target, self.cuts, self.late, self.drip = port, cuts, late, drip
        self.cuts_made, self.frozen = 0, False
        self._open: set[asyncio.StreamWriter] = set()

    def __enter__(self) -> Self:
        ready = threading.Event()

        async def main() -> None:
            self.loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            ready.set()
            await self._stop.wait()
            server.close()
            self._abort()

        self.thread = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
        self.thread.start()
        assert ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self.thread.join(10)

    def cut_all(self) -> None:
        """Every connection ends now, as by a cable that is pulled and put back."""
        self.loop.call_soon_threadsafe(self._abort)

    def _abort(self) -> None:
        for writer in tuple(self._open):
            self.cuts_made += 1
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, to_there = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, to_there}
        try:
            left: list[int | None] = [None]  # bytes of the answer until its cut
            asking = asyncio.ensure_future(self._ask(reader, to_there, left))
            answering = asyncio.ensure_future(self._answer(there, writer, left))
            await asyncio.wait((asking, answering), return_when=asyncio.FIRST_COMPLETED)
            for task in (asking, answering):
                task.cancel()
            await asyncio.gather(asking, answering, return_exceptions=True)
        finally:
            self._open -= {writer, to_there}
            writer.transport.abort()
            to_there.transport.abort()

    async def _ask(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: list[int | None]
    ) -> None:
        while data := await reader.read(65536):
            if data.startswith(b"POST"):
                left[0] = self.cuts()
            writer.write(data)
            await writer.drain()

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: list[int | None]
    ) -> None:
        while data := await reader.read(65536):
            await asyncio.sleep(self.late)
            while self.frozen:
                await asyncio.sleep(0.01)
            if left[0] is not None and len(data) > left[0]:
                self.cuts_made += 1
                writer.write(data[: left[0]])
                await writer.drain()
                return
            left[0] = None if left[0] is None else left[0] - len(data)
            step = self.drip or len(data)
            for start in range(0, len(data), step):
                writer.write(data[start : start + step])
                await writer.drain()
                if self.drip:
                    await asyncio.sleep(0.001)


def random_cuts(seed: int, share: float, most: int) -> Callable[[], int | None]:
    """A share of the answers is cut, each after up to `most` bytes of answers."""
    draws = random.Random(seed)
    return lambda: draws.randrange(1, most) if draws.random() < share else None
