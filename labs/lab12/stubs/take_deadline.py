"""A request's deadline, as its sender's header says it, for the handlers of a server (given)."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from nanovllm.resilience.calls import HEADER, Deadline
from nanovllm.serving.errors import ApiError
from nanovllm.serving.responses import error_response


class TakeDeadline:
    """An ASGI layer: `ends_at` in a request's scope is the moment on the loop's clock.

    A request whose time is over gets a 504, and costs nothing.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else {}
        if HEADER in headers:
            now = asyncio.get_running_loop().time()
            deadline = Deadline.of_headers(now, headers)
            if deadline is not None and deadline.moment <= now:
                over = ApiError("The time for this request is over.", status=504)
                await error_response(over)(scope, receive, send)
                return
            if deadline is not None:
                scope["ends_at"] = deadline.moment
        await self.app(scope, receive, send)
