"""Compaction while a server answers: neither thread touches the engine meanwhile (given)."""

import asyncio
import threading
from dataclasses import asdict
from typing import Any

from nanovllm.serving.async_engine import AsyncEngine
from nanovllm.serving.errors import BadRequestError


async def compact(engine: AsyncEngine, num_blocks: int | None, most: int) -> dict[str, Any]:
    """What `compact_engine` did, as plain data; to `most` blocks, no more. Raises ApiError.

    The engine's thread waits, and the loop's does the work: so no request is accepted for the old
    size and queued in the new one.
    """
    if (num_blocks or 0) > most:
        raise BadRequestError(
            f"num_blocks is {num_blocks}, but this server was started with {most}; give at most "
            "as many.",
            param="num_blocks",
        )
    from nanovllm.paging.compacting import CompactionError, compact_engine  # lab 05 may be missing

    loop, waits, done = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def wait(_: Any) -> None:
        loop.call_soon_threadsafe(waits.set)
        done.wait()

    called = asyncio.ensure_future(engine.call(wait))
    waiting = asyncio.ensure_future(waits.wait())
    try:
        await asyncio.wait({called, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if called.done():
            called.result()  # the engine has died
        made: Any = engine.engine
        return asdict(compact_engine(made, num_blocks))
    except CompactionError as error:
        raise BadRequestError(str(error), param="num_blocks") from None
    finally:
        done.set()
        waiting.cancel()
        await asyncio.gather(called, return_exceptions=True)
