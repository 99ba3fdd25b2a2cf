"""Messages between clients, router and servers in virtual time: lost, late, doubled and cut."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import count
from typing import Any

import httpx

from nanovllm.resilience.kinds import LATE_SECONDS, Fault, Kind

DELAY = 0.005  # seconds


class Host:
    """Where an app runs. down: nobody listens. awake: is not set while it is stopped. open: its
    answers under way. tasks: all of it that runs."""

    app: Any

    def __init__(self) -> None:
        self.down, self.awake = True, asyncio.Event()
        self.awake.set()
        self.tasks: set[asyncio.Task[Any]] = set()
        self.open: set[Answer] = set()

    def kill(self) -> None:
        """SIGKILL: not one line of its code runs any more, but for what unwinds in memory."""
        self.down = True
        self.awake.set()
        for task in tuple(self.tasks):
            task.cancel()
        for answer in tuple(self.open):
            answer.lose()


place: contextvars.ContextVar[Host | None] = contextvars.ContextVar("place", default=None)


def belongs(loop: asyncio.AbstractEventLoop, coroutine: Any, **more: Any) -> asyncio.Task[Any]:
    """A task factory: each task is of the host in whose context it was made."""
    task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **more)
    context = more.get("context")
    host = context.get(place) if context is not None else place.get()
    if host is not None:
        host.tasks.add(task)
        task.add_done_callback(host.tasks.discard)
    return task


class Answer(httpx.AsyncByteStream):
    """An ASGI app's answer to one request, on its way. host: whose it is; None: the router's."""

    def __init__(
        self, app: Any, request: httpx.Request, body: bytes, host: Host | None = None,
        cut: int | None = None,
    ) -> None:  # fmt: skip
        self.host, self.cut = host, cut
        self.queue: asyncio.Queue[Any] = asyncio.Queue()
        self.gone = asyncio.Event()
        path = request.url.path
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1",
            "method": request.method, "scheme": "http", "path": path, "raw_path": path.encode(),
            "root_path": "", "query_string": request.url.query, "client": None, "server": None,
            "headers": [(name.lower(), value) for name, value in request.headers.raw], "state": {},
        }  # fmt: skip
        sent = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            if sent:
                return sent.pop()
            await self.gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if not self.gone.is_set():
                self.queue.put_nowait(message)

        async def serve() -> None:
            try:
                await app(scope, receive, send)
            except Exception as error:
                self.queue.put_nowait(httpx.RemoteProtocolError(repr(error)))

        if host is not None:
            host.open.add(self)
        within = contextvars.copy_context()
        within.run(place.set, host)
        asyncio.get_running_loop().create_task(serve(), context=within)

    def lose(self) -> None:
        """The connection is reset."""
        self.queue.put_nowait(httpx.ReadError("reset on purpose"))

    async def response(self) -> httpx.Response:
        """With this as its body. Raises httpx.ReadError where the server dies before."""
        found = await self._next()
        return httpx.Response(found["status"], headers=found["headers"], stream=self)

    async def _next(self) -> Any:
        try:
            if self.cut == 0:
                raise httpx.ReadError("cut on purpose")
            self.cut = None if self.cut is None else self.cut - 1
            found = await self.queue.get()
            if isinstance(found, Exception):
                raise found
            if self.host is not None:
                await self.host.awake.wait()
            return found
        except BaseException:
            await self.aclose()
            raise

    async def __aiter__(self) -> AsyncIterator[bytes]:
        more = True
        while more:
            found = await self._next()
            more = found.get("more_body", False)
            yield found.get("body", b"")

    async def aclose(self) -> None:
        self.gone.set()
        if self.host is not None:
            self.host.open.discard(self)


class Direct(httpx.AsyncBaseTransport):
    """From the clients to the router: nothing goes wrong here."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await Answer(self.app, request, await request.aread()).response()


class Network(httpx.AsyncBaseTransport):
    """Between the router and the servers. Health checks come through, or time would be all theirs.

    LOST: a reset before anything has arrived. DOUBLED: it arrives twice, and the first answer goes
    nowhere.
    """

    def __init__(
        self,
        hosts: Mapping[str, Host],
        faults: Sequence[Fault],
        cuts: Sequence[tuple[int, int]],
    ) -> None:
        self.hosts, self.numbers = hosts, count()
        self.kinds = {fault.step: fault.kind for fault in faults}
        self.cuts = dict(cuts)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        host = self.hosts[f"http://{request.url.host}"]
        body = await request.aread()
        number = -1 if request.url.path.startswith("/health") else next(self.numbers)
        kind = self.kinds.get(number)
        await asyncio.sleep(DELAY + LATE_SECONDS * (kind is Kind.LATE))
        if host.down:
            raise httpx.ConnectError("nobody listens")
        if kind is Kind.LOST:
            raise httpx.ReadError("lost on purpose")
        await host.awake.wait()
        if kind is Kind.DOUBLED and not host.down:
            first = Answer(host.app, request, body, host)
            await asyncio.sleep(LATE_SECONDS)
            await first.aclose()
        if host.down:
            raise httpx.ConnectError("nobody listens")
        return await Answer(host.app, request, body, host, self.cuts.get(number)).response()
