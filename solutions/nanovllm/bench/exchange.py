"""One request over a connection of its own, its answer handed on as it comes.

The client shares the machine with the server it measures, so it has to be light: httpx spends
about as much time on a token as a small model does.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import httptools
import httpx

T = TypeVar("T")
_OURS = {b"connection": b"close", b"accept-encoding": b"identity"}
Read = Callable[[bytes], None]  # a piece of the body, as soon as it is there


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine, in uvloop's event loop where there is one: half the time a piece."""
    try:
        import uvloop
    except ImportError:  # Windows
        return asyncio.run(work)
    return uvloop.run(work)


async def exchange(request: httpx.Request, read: Read) -> int:
    """Send a request and pass on its answer; the status, once the answer has ended.

    Raises:
        OSError: there is no connection, it broke, or what came is not HTTP.
    """
    url = request.url
    tls = url.scheme == "https"
    loop = asyncio.get_running_loop()
    transport, answer = await loop.create_connection(
        lambda: _Exchange(_bytes(request), read, loop.create_future()),
        url.host, url.port or (443 if tls else 80), ssl=tls or None,
    )  # fmt: skip
    try:
        return await answer.status
    finally:
        transport.close()


def _bytes(request: httpx.Request) -> bytes:
    headers = [(name, value) for name, value in request.headers.raw if name.lower() not in _OURS]
    head = b"".join(name + b": " + value + b"\r\n" for name, value in [*headers, *_OURS.items()])
    return b"%b %b HTTP/1.1\r\n%b\r\n%b" % (
        request.method.encode(), request.url.raw_path, head, request.content
    )  # fmt: skip


class _Exchange(asyncio.Protocol):
    """`status` is done when the answer is whole, or the server has closed the connection."""

    def __init__(self, request: bytes, read: Read, status: "asyncio.Future[int]") -> None:
        self.request, self.on_body, self.status = request, read, status
        self.parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: asyncio.WriteTransport) -> None:
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(ConnectionError(f"what came is not HTTP: {error.__context__ or error}"))

    def on_message_complete(self) -> None:
        self._end(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        if self.status.done():
            return
        if error is not None:
            self.status.set_exception(error)
        elif status := self.parser.get_status_code():
            self.status.set_result(status)
        else:
            self.status.set_exception(ConnectionError("the server closed the connection"))
