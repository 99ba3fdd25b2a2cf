"""An answer as a stream of server-sent events, and the client who may leave at any moment."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol, TypeVar

from nanovllm.serving.deltas import Delta
from nanovllm.serving.failures import api_error
from nanovllm.serving.sse import DONE, frame

T = TypeVar("T")
Receive = Callable[[], Awaitable[dict[str, Any]]]


class ChunkWriter(Protocol):
    """The JSON of one kind of stream (completion or chat); see writers.py."""

    def opening(self, index: int) -> dict[str, Any] | None: ...
    def chunk(self, delta: Delta) -> dict[str, Any]: ...
    def usage(self) -> dict[str, Any] | None: ...


def event_stream(steps: AsyncIterator[list[Delta]], writer: ChunkWriter) -> AsyncIterator[bytes]:
    """The bytes of a streamed answer: one piece for all that a step brought.

    Each choice begins with `writer.opening` (where it is not None), before its first chunk. A
    delta without text, log-probabilities and finish reason is not shown. After the last step
    comes `writer.usage`, where it is not None. If the steps raise, an event with the body of the
    `api_error` takes the place of what is missing, usage included. DONE is always the last, unless
    the reader itself is cancelled or closes the stream: then nothing more is sent.
    """
    raise NotImplementedError("lab07 task 3: event_stream")


class ClientGoneError(Exception):
    """The client has closed the connection; nobody reads an answer."""


async def while_connected(receive: Receive, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled as soon as the client disconnects.

    `receive` gives the connection's messages; one of type "http.disconnect" says that the client
    has gone. Whichever of the two ends first, the other is cancelled and awaited, and so are both
    if the caller is cancelled: no task is left. An answer that is ready as the client goes counts.

    Raises:
        ClientGoneError: the client has gone.
    """

    raise NotImplementedError("lab07 task 3: while_connected")
