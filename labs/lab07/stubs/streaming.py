"""An answer as a stream of server-sent events, and the client who may leave at any moment."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any, Protocol, TypeVar

from nanovllm.serving.deltas import Delta
from nanovllm.serving.failures import api_error
from nanovllm.serving.sse import DONE, frame

T = TypeVar("T")
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class ChunkWriter(Protocol):
    """The JSON of one kind of stream (completion or chat); see writers.py."""

    def opening(self, index: int) -> dict[str, Any] | None: ...
    def chunk(self, delta: Delta) -> dict[str, Any]: ...
    def usage(self) -> dict[str, Any] | None: ...


def event_stream(steps: AsyncIterator[list[Delta]], writer: ChunkWriter) -> AsyncIterator[bytes]:
    """The bytes of a streamed answer, as pieces that may be sent at once.

    steps: the deltas that each step of the engine brought. What a step brought is given before the
    next one is asked for, in one piece; a step with nothing to show gives none. A delta has
    something to show if it has text, log-probabilities or a finish reason: then it is one event,
    `writer.chunk(delta)`. Before the first event of a choice comes `writer.opening(index)`, where
    that is not None; after the last step `writer.usage()`, where that is not None; at the end DONE.

    If the steps raise, what follows is one event with the body of the `api_error`, and DONE; no
    usage. If the reader itself is cancelled or closes the stream, nothing more is given.
    """
    raise NotImplementedError("lab07 task 3: event_stream")


class ClientGoneError(Exception):
    """The client has closed the connection; nobody reads an answer."""


async def while_connected(receive: Receive, work: Awaitable[T]) -> T:
    """The result of `work`, or its error; it is cancelled if the client disconnects before that.

    `receive()` waits for the next message of the connection; one of type "http.disconnect" says
    that the client has gone, others mean nothing. When this returns or raises, no task is left
    that it began, and `work` has ended (unless it is cancelled again while it waits for that).
    If the client goes at the moment at which the answer is ready, the answer is returned.

    Raises:
        ClientGoneError: the client has gone.
    """

    raise NotImplementedError("lab07 task 3: while_connected")
