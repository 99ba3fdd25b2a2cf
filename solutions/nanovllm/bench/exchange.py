"""Requests to one server over connections that are kept, each answer handed on as it comes.

The client shares the machine with the server it measures, so it has to be light: httpx spends
about as much time on a token as a small model does.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

import httptools
import httpx

T = TypeVar("T")
_OURS = {b"connection": b"keep-alive", b"accept-encoding": b"identity"}
Read = Callable[[bytes], None]  # a piece of the body, as soon as it is there


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine, in uvloop's event loop where there is one: half the time a piece."""
    try:
        import uvloop
    except ImportError:  # Windows
        return asyncio.run(work)
    return uvloop.run(work)


class Connections:
    """Connections to one server: a request takes one that is free, or opens a new one."""

    def __init__(self) -> None:
        self._free: list[_Connection] = []

    async def exchange(self, request: httpx.Request, read: Read) -> int:
        """Send a request and pass on its answer; the status, once the answer has ended.

        A server may close a kept connection as we ask; what was not answered at all is asked again
        over a new one.

        Raises:
            OSError: there is no connection, it broke, or what came is not HTTP.
        """
        while self._free:
            connection = self._free.pop()
            try:
                return await self._ask(connection, request, read)
            except OSError:
                if connection.heard:
                    raise
        return await self._ask(await _connect(request.url), request, read)

    async def _ask(self, connection: "_Connection", request: httpx.Request, read: Read) -> int:
        try:
            status = await connection.ask(_bytes(request), read)
        except BaseException:
            connection.transport.close()
            raise
        if connection.lasts and not connection.transport.is_closing():
            self._free.append(connection)
        else:
            connection.transport.close()
        return status

    def close(self) -> None:
        """Let go of the connections that are free."""
        while self._free:
            self._free.pop().transport.close()


async def _connect(url: httpx.URL) -> "_Connection":
    tls = url.scheme == "https"
    _, connection = await asyncio.get_running_loop().create_connection(
        _Connection, url.host, url.port or (443 if tls else 80), ssl=tls or None
    )
    return connection


def _bytes(request: httpx.Request) -> bytes:
    headers = [(name, value) for name, value in request.headers.raw if name.lower() not in _OURS]
    head = b"".join(name + b": " + value + b"\r\n" for name, value in [*headers, *_OURS.items()])
    return b"%b %b HTTP/1.1\r\n%b\r\n%b" % (
        request.method.encode(), request.url.raw_path, head, request.content
    )  # fmt: skip


class _Connection(asyncio.Protocol):
    """One request at a time; `status` is done when its answer is whole, or nothing more comes."""

    transport: asyncio.Transport
    parser: httptools.HttpResponseParser
    heard = False  # whether anything of the present answer has come
    lasts = False  # whether the server means to keep it after the answer
    status: "asyncio.Future[int] | None" = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    async def ask(self, request: bytes, read: Read) -> int:
        """Send the bytes of a request; the status of its answer. Raises OSError."""
        self.on_body, self.heard, self.lasts = read, False, False
        self.parser = httptools.HttpResponseParser(self)
        self.status = asyncio.get_running_loop().create_future()
        if self.transport.is_closing():
            raise ConnectionError("the server closed the connection")
        self.transport.write(request)
        return await self.status

    def data_received(self, data: bytes) -> None:
        self.heard = True
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(ConnectionError(f"what came is not HTTP: {error.__context__ or error}"))

    def on_message_complete(self) -> None:
        self.lasts = self.parser.should_keep_alive()
        self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)

    def _end(self, error: Exception | None) -> None:
        if self.status is None or self.status.done():
            return
        if error is not None:
            self.status.set_exception(error)
        elif status := self.parser.get_status_code():
            self.status.set_result(status)
        else:
            self.status.set_exception(ConnectionError("the server closed the connection"))
