"""What goes out: JSON, and streams that notice when nobody listens any more (given)."""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from nanovllm.serving.errors import ApiError
from nanovllm.serving.failures import api_error
from nanovllm.serving.streaming import ClientGoneError, while_connected

log = logging.getLogger("nanovllm.serving")


class JsonResponse(Response):
    """JSON, by the fast library."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content)


def error_response(error: ApiError) -> JsonResponse:
    """An error with its status, headers and body."""
    return JsonResponse(error.body, status_code=error.status, headers=error.headers)


def told(error: Exception, request_id: str) -> ApiError:
    """What a client hears of an error; one that nobody expected stands in the log, by this id."""
    found = api_error(error)
    if found.status >= 500 and not isinstance(error, ApiError):
        log.error("request failed", exc_info=error, extra={"fields": {"request_id": request_id}})
    return found


class EventStreamResponse(Response):
    """Sends pieces of an event stream as they come; `leave` is called at the end, however it ends.

    `limit` is entered while it runs. The scope's `straight` is a shorter way for the pieces: the
    layers between here and the connection look at the start of an answer alone.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        pieces: AsyncIterator[bytes],
        limit: AbstractContextManager[None],
        leave: Callable[[], None],
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self.pieces, self.limit, self.leave = pieces, limit, leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self.limit, suppress(ClientGoneError):
                await while_connected(receive, self._send(send, scope.get("straight", send)))
        finally:
            self.leave()

    async def _send(self, send: Send, straight: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        async for piece in self.pieces:
            await straight({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
