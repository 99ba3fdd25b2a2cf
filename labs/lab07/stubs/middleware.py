"""Around every request: its id, its key, its size, and one line in the log (given)."""

import asyncio
import logging
import re
import time
import uuid
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nanovllm.serving.config import ServeConfig
from nanovllm.serving.errors import ApiError, BadRequestError
from nanovllm.serving.keys import authorize
from nanovllm.serving.responses import error_response, told

log = logging.getLogger("nanovllm.serving.access")
_GOOD_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
# By every open dashboard, some of it twice a second: too much for the log.
POLLED = ("/dashboard/state", "/dashboard/history")
BODY_SECONDS = 60.0  # a client that sends its body slower than this is not waited for


class RequestMiddleware:
    """Gives each request its id (X-Request-Id, the client's own if it is harmless)."""

    def __init__(self, app: ASGIApp, config: ServeConfig) -> None:
        self.app = app
        self.config = config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {key: value.decode("latin-1") for key, value in scope["headers"]}
        given = headers.get(b"x-request-id", "")
        scope["request_id"] = given if _GOOD_ID.fullmatch(given) else uuid.uuid4().hex
        scope["log"], scope["straight"] = {}, send
        started, status = time.perf_counter(), [0]

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                status[0] = message["status"]
                message["headers"].append((b"x-request-id", scope["request_id"].encode()))
            await send(message)

        try:
            scope["api_key"] = self._key(scope["path"], headers)
            body = await self._read(headers, receive)
            await self.app(scope, _replay(body, receive), sending)
        except ApiError as error:
            await error_response(error)(scope, receive, sending)
        except Exception as error:  # here, so that the answer has its id and stands in the log
            if status[0]:  # too late for an answer of its own
                raise
            await error_response(told(error, scope["request_id"]))(scope, receive, sending)
        finally:
            self._log(scope, status[0], time.perf_counter() - started)

    def _key(self, path: str, headers: dict[bytes, str]) -> str:
        keys = self.config.api_keys
        return authorize(path, headers.get(b"authorization"), keys) if keys else ""

    async def _read(self, headers: dict[bytes, str], receive: Receive) -> bytes:
        """The whole body; ApiError where it is too large or too slow."""
        limit = self.config.max_body_bytes
        close = {"Connection": "close"}  # or the rest of the body would still be read
        too_large = BadRequestError(
            f"The body has more than {limit} bytes.", status=413, headers=close
        )
        length = headers.get(b"content-length", "0")
        if length.isdecimal() and int(length[:20]) > limit:
            raise too_large
        pieces, size = [], 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while True:
                    message = await receive()
                    pieces.append(message.get("body", b""))
                    size += len(pieces[-1])
                    if size > limit:
                        raise too_large
                    if not message.get("more_body"):
                        return b"".join(pieces)
        except TimeoutError:
            raise BadRequestError(
                "The body did not arrive in time.", status=408, headers=close
            ) from None

    def _log(self, scope: Scope, status: int, seconds: float) -> None:
        fields: dict[str, Any] = {
            "request_id": scope["request_id"],
            "method": scope["method"],
            "path": scope["path"],
            "status": status or None,  # None: the client had gone before the answer
            "seconds": round(seconds, 4),
            **scope["log"],
        }
        level = logging.DEBUG if scope["path"] in POLLED and status == 200 else logging.INFO
        log.log(level, "request", extra={"fields": fields})


def _replay(body: bytes, receive: Receive) -> Receive:
    """A receive that gives the body first, and then what the connection has to say."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receiving() -> Message:
        return first.pop() if first else await receive()

    return receiving
