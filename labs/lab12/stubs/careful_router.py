"""Lab 11's router with lab 12: deadlines, a retry budget, breakers, streams that go on (given)."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import httpx
from fastapi import FastAPI, Request
from prometheus_client import Counter, Gauge
from starlette.responses import Response, StreamingResponse

from nanovllm.cluster.errors import NoReplicaError
from nanovllm.cluster.router import (
    Pool,
    Router,
    RouterConfig,
    kept,
    passed,
    posted,
    read_body,
)
from nanovllm.cluster.routing_interface import Query
from nanovllm.resilience.breaker import Breaker, BreakerState
from nanovllm.resilience.calls import Deadline
from nanovllm.resilience.durable import FETCH
from nanovllm.resilience.errors import DeadlinePassedError
from nanovllm.resilience.retry_budget import RetryBudget
from nanovllm.resilience.told import LostError, ToldAnswer, cut_short, seeded
from nanovllm.serving.errors import ApiError, NotFoundError, OverloadedError
from nanovllm.serving.sse import DONE, EventReader, frame

PATIENCE = 5.0  # seconds in which a server must say that it is well
EVERY = 1.0  # seconds between two such questions
WAIT = 60.0  # seconds that a cut answer waits for a server that goes on with it
PAUSE = 0.25  # seconds between two looks for one
DURABLE = ("prefer", "idempotency-key")  # of a request that a server's journal is to keep
GRACE = 1.0  # seconds after a deadline in which its server may still send the partial text
log = logging.getLogger("nanovllm.resilience")
LOST = (httpx.HTTPError, TimeoutError, LostError)


@dataclass
class Trip:
    """A request on its way. deadline: on the loop's clock; None if its client has all the time."""

    path: str
    headers: dict[str, str]
    query: Query
    body: dict[str, Any]
    deadline: Deadline | None


class NobodyAskedError(OverloadedError):
    """There is no server that may be asked now: nothing was sent."""


class CarefulRouter(Router):
    """Also for servers that are not ours; their streams alone cannot go on elsewhere.

    - What is left of a deadline is sent along with each try, and none begins after it.
    - First tries bring in what further ones cost: one budget for all requests and servers.
    - Each server has a breaker, and is asked every second whether it is ready. One that does not
      answer in `patience` seconds, or says that it is not live, is taken for dead, with all that is
      open there.
    - An answer that is cut goes on at another server behind the last token that the client has; a
      whole one is computed again. All tries of a request draw from one seed.
    - A request for a server's journal (see `durable.py`) is sent as it is. Equal keys reach one
      server as long as this can be asked; an answer is fetched from whoever has it.
    """

    def __init__(
        self,
        config: RouterConfig,
        client: httpx.AsyncClient | None = None,
        patience: float = PATIENCE,
    ) -> None:
        super().__init__(config, client)
        self.patience, self.budget = patience, RetryBudget()
        urls = (*self.pool.urls, *self.prefill.urls)
        self.breakers = {url: Breaker() for url in urls}
        self._waits: dict[str, set[asyncio.Timeout]] = {url: set() for url in urls}
        self._prober = client or httpx.AsyncClient(trust_env=False, timeout=patience)
        self.retries = Counter(
            "nanovllm:router_retries", "Further tries: of a request, or of a stream's rest.",
            ("kind",), registry=self.registry,
        )  # fmt: skip
        opened = Gauge(
            "nanovllm:router_breaker_open", "1 while nothing is sent to a server.", ("server",),
            registry=self.registry,
        )  # fmt: skip
        for url in urls:
            opened.labels(url).set_function(lambda url=url: float(self._is_open(url)))
        self.app.get(FETCH + "{request_id}")(self.fetch)

    @asynccontextmanager
    async def _lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        probes = [
            asyncio.ensure_future(self._probe(pool, url))
            for pool in (self.pool, self.prefill)
            for url in pool.urls
        ]
        async with super()._lifespan(app):
            yield
        for probe in probes:
            probe.cancel()
        await asyncio.gather(*probes, return_exceptions=True)
        await self._prober.aclose()

    async def _probe(self, pool: Pool, url: str) -> None:
        """Ask a server again and again; what is open at one that does not answer is lost."""
        while True:
            try:
                async with asyncio.timeout(self.patience):
                    ready = await self._says(url, "/health") < 500  # some have no such path
                    live = ready or await self._says(url, "/health/live") != 503
            except (httpx.ConnectError, httpx.TimeoutException, TimeoutError):
                ready = live = False
            except httpx.HTTPError:  # a line that was cut: nobody knows why
                await asyncio.sleep(EVERY)
                continue
            if ready:
                pool.resting.pop(url, None)
            elif live:
                pool.rest(url)
            else:
                pool.failed(url)
                for wait in self._waits[url]:
                    if not wait.expired():
                        wait.reschedule(_now())
            await asyncio.sleep(EVERY)

    async def _says(self, url: str, path: str) -> int:
        return (await self._prober.get(url.rstrip("/") + path)).status_code

    async def answer(self, request: Request) -> Response:
        """Send a request where the policy says; the answer is whole, whoever dies meanwhile."""
        arrived = _now()
        body, query = read_body(await request.body())
        name = request.headers.get("x-request-id") or uuid.uuid4().hex
        headers = passed(request) | {"x-request-id": name}
        deadline = Deadline.of_headers(arrived, request.headers)
        journal = {name: request.headers[name] for name in DURABLE if name in request.headers}
        if journal:
            trip = Trip(request.url.path, headers | journal, query, body, deadline)
            return await self._durable(trip)
        trip = Trip(request.url.path, headers, query, seeded(body), deadline)
        told = ToldAnswer(trip.body) if body.get("stream") is True else None
        first = told.body() if told else trip.body
        if self.prefill.urls:
            given = await self._prefill(trip.path, self._headers(trip), trip.body, query)
            first = first | {"kv_transfer_params": given}
        stack = AsyncExitStack()
        try:
            try:
                url, got = await self._ask(self.pool, query, self._request(trip, first), stack)
            except ApiError as error:
                if error.status != 502:
                    raise
                url, got = await self._again(trip, first, stack, "request")
            if told is None or got.status_code != 200:
                return await self._whole(trip, url, got, stack)
        except BaseException:
            await stack.aclose()
            raise
        stream = self._stream(trip, told, url, got, stack)
        kind = got.headers.get("content-type")
        return StreamingResponse(stream, headers=kept(got), media_type=kind)

    async def fetch(self, request: Request) -> Response:
        """The answer from whose journal it is in; 503 where a server is away that may have it."""
        away = []
        for url in self.pool.urls:
            sent = self.client.build_request("GET", request.url.path, headers=passed(request))
            try:
                async with self._waiting(url, None):
                    got = await self.client.send(self._to(url, sent))
            except (httpx.HTTPError, TimeoutError):
                away.append(url)
                continue
            if got.status_code != 404:
                return _as_it_is(got, got.content)
        if away:
            raise OverloadedError(f"{away[0]}, which may have this request, does not answer.")
        raise NotFoundError(
            f"No server has a request {request.url.path.removeprefix(FETCH)!r:.80}."
        )

    async def _durable(self, trip: Trip) -> Response:
        """Its server gives it a seed, and knows its key: so the body is the client's own."""
        key = trip.headers.get("idempotency-key", "")
        async with AsyncExitStack() as stack:
            sent = self._request(trip, trip.body)
            url, got = await self._ask(self.pool, trip.query, sent, stack, key=key)
            try:
                async with self._waiting(url, trip.deadline):
                    content = await got.aread()
            except LOST as error:
                self._lost(url)
                raise ApiError(f"{url} was lost: {error!r}; send it again.", status=502) from None
        self._ended(trip, url, got)
        return _as_it_is(got, content)

    async def _whole(
        self, trip: Trip, url: str, got: httpx.Response, stack: AsyncExitStack
    ) -> Response:
        """An answer in one piece, from the first server that tells it to its end."""
        while True:
            try:
                async with stack, self._waiting(url, trip.deadline):
                    content = await got.aread()
                if got.status_code == 200 and _is_cut(content):
                    raise LostError("it stopped in the middle of its answer")
                self._ended(trip, url, got)
                kind = got.headers.get("content-type")
                return Response(content, got.status_code, kept(got), kind)
            except LOST:
                self._lost(url)
            stack = AsyncExitStack()
            url, got = await self._again(trip, trip.body, stack, "whole")

    async def _stream(
        self, trip: Trip, told: ToldAnswer, url: str, got: httpx.Response, stack: AsyncExitStack
    ) -> AsyncIterator[bytes]:
        """The chunks that the client has not, from as many servers as it takes."""
        while True:
            try:
                async with stack:
                    async for piece in self._pieces(trip, told, url, got):
                        yield piece
                self._ended(trip, url, got)
                return
            except Exception as error:  # whatever it is, another server may go on
                failed = error
            try:
                if isinstance(failed, ApiError):
                    raise failed
                self._lost(url)
                log.warning("stream lost", extra={"fields": {"server": url, "why": repr(failed)}})
                if told.whole:
                    yield DONE
                    return
                if not told.can_go_on:
                    why = f"{url} was lost in the middle, and nobody can go on: {failed!r}."
                    raise ApiError(why, status=502)
                stack = AsyncExitStack()
                url, got = await self._again(trip, told.body(), stack, "stream")
            except ApiError as error:
                yield frame(error.body) + DONE
                return

    async def _pieces(
        self, trip: Trip, told: ToldAnswer, url: str, got: httpx.Response
    ) -> AsyncIterator[bytes]:
        """What one server adds to the stream. Raises LostError, and what httpx raises."""
        reader, received = EventReader(), got.aiter_raw()
        while True:
            async with self._waiting(url, trip.deadline):
                data = await anext(received, None)
            if data is None:
                raise LostError("its stream has no end")
            events = reader.push(data)
            done = "[DONE]" in events
            chunks = [told.hear(json.loads(event)) for event in events if event != "[DONE]"]
            piece = b"".join(frame(chunk) for chunk in chunks if chunk is not None)
            if piece or done:
                yield piece + DONE * done
            if done:
                return

    async def _again(
        self, trip: Trip, body: dict[str, Any], stack: AsyncExitStack, kind: str
    ) -> tuple[str, httpx.Response]:
        """A further try, as soon as there is a server for it. Raises ApiError.

        Each try is paid; to look for a server, and to find that nobody may be asked, is free.
        """
        paid, ends = False, _now() + WAIT
        while True:
            if not paid:
                if not self.budget.retry(_now()):
                    raise OverloadedError(
                        "The server was lost, and no retry is left in the budget."
                    )
                self.retries.labels(kind).inc()
            here = AsyncExitStack()
            try:
                sent = self._request(trip, body)
                url, got = await self._ask(self.pool, trip.query, sent, here, again=True)
                if got.status_code == 200:
                    await stack.enter_async_context(here)
                    return url, got
                said = (await got.aread()).decode(errors="replace")
                raise ApiError(f"{url} does not go on: {said:.300}", status=got.status_code)
            except BaseException as error:
                await here.aclose()
                waits = not isinstance(error, ApiError) or error.status in (502, 503)
                if not isinstance(error, Exception) or not waits:
                    raise
                if _now() > ends:
                    raise ApiError(f"No server goes on: {error}", status=502) from None
                paid = isinstance(error, NobodyAskedError)
            await asyncio.sleep(PAUSE)

    async def _ask(
        self,
        pool: Pool,
        query: Query,
        sent: httpx.Request,
        stack: AsyncExitStack,
        again: bool = False,
        key: str = "",
    ) -> tuple[str, httpx.Response]:
        """As the caller of `calls.py`, but in the policy's order, and without waiting for others.

        An answer of 500 or more is given back where nobody else may be asked. again: this is a
        further try already, which is paid. key: it says the order, the policy does not.
        """
        deadline = Deadline.of_headers(_now(), sent.headers)
        tried: set[str] = set()
        asked = False
        if not again:
            self.budget.call(_now())
        while True:
            here = AsyncExitStack()
            try:
                left = self._left(pool, tried)
                if key:  # whoever is away, the others keep their keys
                    left = sorted(left, key=lambda url: sha256(f"{key} {url}".encode()).digest())[
                        :1
                    ]
                url = here.enter_context(pool.work.on(query, left))
            except NoReplicaError as error:
                raise (OverloadedError if asked else NobodyAskedError)(str(error)) from None
            tried.add(url)
            try:
                if not self.breakers[url].allow(_now()):
                    await here.aclose()
                    continue
                once = self._to(url, sent, **_left_of(deadline))
                async with self._waiting(url, deadline):
                    asked = True
                    got = await self.client.send(once, stream=True)
            except (httpx.HTTPError, TimeoutError) as error:
                await here.aclose()
                self._lost(url)
                if isinstance(error, httpx.ConnectError):
                    pool.failed(url)
                self.requests.labels(url, "unreachable").inc()
                if not self._pays(pool, tried):
                    raise ApiError(f"{url} did not answer: {error!r}.", status=502) from None
                continue
            except BaseException:
                await here.aclose()
                raise
            here.push_async_callback(got.aclose)
            self.breakers[url].record(_now(), got.status_code)
            if got.status_code >= 500 and self._pays(pool, tried):
                await here.aclose()
                self.requests.labels(url, got.status_code).inc()
                continue
            await stack.enter_async_context(here)
            return url, got

    def _left(self, pool: Pool, tried: set[str]) -> list[str]:
        """Who may be asked."""
        return [url for url in pool.choosable() if url not in tried and not self._is_open(url)]

    def _pays(self, pool: Pool, tried: set[str]) -> bool:
        """Whether there is somebody else to ask, and a retry for it."""
        paid = bool(self._left(pool, tried)) and self.budget.retry(_now())
        if paid:
            self.retries.labels("request").inc()
        return paid

    def _is_open(self, url: str) -> bool:
        return self.breakers[url].state(_now()) is BreakerState.OPEN

    def _lost(self, url: str) -> None:
        self.breakers[url].record(_now(), None)

    def _ended(self, trip: Trip, url: str, got: httpx.Response) -> None:
        self.requests.labels(url, got.status_code).inc()
        if got.status_code == 200:
            self.pool.sent(url, trip.query.hashes)

    def _headers(self, trip: Trip) -> dict[str, str]:
        return trip.headers | _left_of(trip.deadline)

    def _request(self, trip: Trip, body: dict[str, Any]) -> httpx.Request:
        """What is sent now. Raises ApiError where the time is over."""
        return posted(self.client, trip.path, body, self._headers(trip))

    @asynccontextmanager
    async def _waiting(self, url: str, deadline: Deadline | None) -> AsyncIterator[None]:
        """For what takes as long as a server takes. Raises TimeoutError where it is taken for dead;
        ApiError where the deadline has passed."""
        ends = None if deadline is None else deadline.moment + GRACE
        try:
            async with asyncio.timeout_at(ends) as wait:
                self._waits[url].add(wait)
                try:
                    yield
                finally:
                    self._waits[url].discard(wait)
        except TimeoutError:
            _left_of(deadline)
            raise


def _as_it_is(got: httpx.Response, content: bytes) -> Response:
    return Response(content, got.status_code, kept(got), got.headers.get("content-type"))


def _now() -> float:
    return asyncio.get_running_loop().time()


def _left_of(deadline: Deadline | None) -> dict[str, str]:
    """The header of a deadline. Raises ApiError where it has passed."""
    try:
        return {} if deadline is None else deadline.headers(_now())
    except DeadlinePassedError as error:
        raise ApiError(str(error), status=504) from None


def _is_cut(content: bytes) -> bool:
    """Whether a whole answer has a choice that its server gave up."""
    if b'"abort"' not in content:
        return False
    return any(cut_short(choice) for choice in json.loads(content).get("choices", ()))
