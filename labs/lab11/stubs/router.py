"""The router: OpenAI's interface in front of several servers, streaming, with metrics (given)."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from fastapi import FastAPI, Request
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from starlette.responses import Response, StreamingResponse

from nanovllm.cluster.block_index import BlockIndex
from nanovllm.cluster.errors import ClusterError, NoReplicaError
from nanovllm.cluster.open_work import OpenWork, text_blocks
from nanovllm.cluster.routing import make_policy
from nanovllm.cluster.routing_interface import Query
from nanovllm.serving.errors import ApiError, BadRequestError, OverloadedError
from nanovllm.serving.responses import JsonResponse, error_response

CHARACTERS, TOKENS = 64, 16  # of a block of text; about so many tokens it stands for
REST = 5.0  # seconds for which a replica that did not answer is left alone
BLOCKS = 20_000  # remembered of one replica
PASSED = ("authorization", "content-type", "accept")
ANSWERED = (
    "location", "preference-applied", "retry-after", "www-authenticate", "x-request-id",
)  # fmt: skip


@dataclass
class RouterConfig:
    """urls: servers that do both; or prefill and decode: servers of these roles."""

    urls: tuple[str, ...] = ()
    prefill: tuple[str, ...] = ()
    decode: tuple[str, ...] = ()
    policy: str = "prefix_aware"
    timeout: float = 600.0

    def __post_init__(self) -> None:
        every = (*self.urls, *self.prefill, *self.decode)
        if bool(self.prefill) != bool(self.decode) or bool(self.urls) == bool(self.decode):
            raise ClusterError("A router needs servers, or both prefill and decode servers.")
        if len(set(every)) < len(every):
            raise ClusterError("Two servers of a router have one address; each is named once.")


@dataclass
class Pool:
    """Servers of one role. Which blocks they hold is what was sent to them, newest last."""

    urls: Sequence[str]
    index: BlockIndex
    work: OpenWork
    resting: dict[str, float] = field(default_factory=dict)  # until when
    known: dict[str, dict[Hashable, None]] = field(default_factory=dict)

    def choosable(self) -> list[str]:
        now = time.monotonic()
        return [url for url in self.urls if self.resting.get(url, 0.0) <= now]

    def sent(self, url: str, blocks: Sequence[Hashable]) -> None:
        known = self.known.setdefault(url, {})
        for block in blocks:
            known.pop(block, None)
            known[block] = None
        self.index.stored(url, blocks)
        old = list(known)[: max(0, len(known) - BLOCKS)]
        for block in old:
            del known[block]
        self.index.removed(url, old)

    def rest(self, url: str) -> None:
        self.resting[url] = time.monotonic() + REST

    def failed(self, url: str) -> None:
        self.rest(url)
        self.known.pop(url, None)
        self.index.cleared(url)


class Router:
    """`app` is what uvicorn runs."""

    def __init__(self, config: RouterConfig, client: httpx.AsyncClient | None = None) -> None:
        self.config = config
        self.client = client or httpx.AsyncClient(
            timeout=config.timeout, trust_env=False, limits=httpx.Limits(max_connections=None)
        )
        self.prefill = self._pool(config.prefill)
        self.pool = self._pool(config.urls or config.decode)
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "nanovllm:router_requests", "Requests, by server and status.", ("server", "status"),
            registry=self.registry,
        )  # fmt: skip
        self.open = Gauge(
            "nanovllm:router_open", "Requests not ended.", ("server",), registry=self.registry
        )
        self.app = FastAPI(title="nano-vLLM router", lifespan=self._lifespan)
        self.app.add_exception_handler(ApiError, _told)
        self._routes()

    def _pool(self, urls: Sequence[str]) -> Pool:
        index = BlockIndex()
        return Pool(urls, index, OpenWork(make_policy(self.config.policy, index), index))

    @asynccontextmanager
    async def _lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        yield
        await self.client.aclose()

    def _routes(self) -> None:
        @self.app.post("/v1/completions")
        @self.app.post("/v1/chat/completions")
        async def answer(request: Request) -> Response:
            return await self.answer(request)

        @self.app.get("/v1/models")
        async def models(request: Request) -> Response:
            sent = self.client.build_request("GET", "/v1/models", headers=passed(request))
            async with AsyncExitStack() as stack:
                _, got = await self._ask(self.pool, Query(), sent, stack)
                content = await got.aread()
            return Response(content, got.status_code, kept(got), "application/json")

        @self.app.get("/health")
        async def health() -> Response:
            there = {"ready": self.pool.choosable(), "prefill": self.prefill.choosable()}
            return JsonResponse(there, 200 if there["ready"] else 503)

        @self.app.get("/metrics")
        async def metrics() -> Response:
            for pool in (self.pool, self.prefill):
                for url in pool.urls:
                    self.open.labels(url).set(pool.work.load(url).requests)
            return Response(generate_latest(self.registry), media_type="text/plain; version=0.0.4")

    async def answer(self, request: Request) -> Response:
        """Send a request where the policy says, and pass on the answer piece by piece."""
        body, query = read_body(await request.body())
        path, headers = request.url.path, passed(request)
        if self.prefill.urls:
            body["kv_transfer_params"] = await self._prefill(path, headers, body, query)
        sent = posted(self.client, path, body, headers)
        stack = AsyncExitStack()
        try:
            url, got = await self._ask(self.pool, query, sent, stack)
        except BaseException:
            await stack.aclose()
            raise
        self.requests.labels(url, got.status_code).inc()
        if got.status_code == 200:
            self.pool.sent(url, query.hashes)
        kind = got.headers.get("content-type", "application/json")
        return StreamingResponse(_pass_on(got, stack), got.status_code, kept(got), kind)

    async def _prefill(
        self, path: str, headers: dict[str, str], body: dict[str, Any], query: Query
    ) -> dict[str, Any]:
        """What the prefill server says of the K and V that it has parked; {} if none could.

        Then the server that decodes computes the prompt itself.
        """
        alone = {**body, "max_tokens": 1, "stream": False, "n": 1, "min_tokens": 0}
        alone.pop("stream_options", None)
        if "max_completion_tokens" in alone:
            alone["max_completion_tokens"] = 1
        alone["kv_transfer_params"] = {"do_remote_decode": True, "do_remote_prefill": False}
        sent = posted(self.client, path, alone, headers)
        async with AsyncExitStack() as stack:
            try:
                url, got = await self._ask(self.prefill, query, sent, stack)
                answer = await got.aread()
            except (ApiError, httpx.HTTPError):
                return {}  # nobody is there, or it died in the middle
            self.requests.labels(url, got.status_code).inc()
            if got.status_code != 200:
                return {}  # the other side says what is wrong with the request
            self.prefill.sent(url, query.hashes)
            return json.loads(answer).get("kv_transfer_params") or {}

    async def _ask(
        self, pool: Pool, query: Query, sent: httpx.Request, stack: AsyncExitStack
    ) -> tuple[str, httpx.Response]:
        """The first server that answers: one that cannot be reached rests, and the next is asked.

        So is the next of one that refuses with a 503, since it drains or is full; the last one's
        503 is the answer. The request is open there until the stack is closed.
        """
        refused: set[str] = set()
        while True:
            here = AsyncExitStack()
            left = [url for url in pool.choosable() if url not in refused]
            try:
                url = here.enter_context(pool.work.on(query, left))
            except NoReplicaError as error:
                raise OverloadedError(str(error)) from None
            try:
                got = await self.client.send(self._to(url, sent), stream=True)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                # nothing was computed: another may be asked
                await here.aclose()
                pool.failed(url)
                self.requests.labels(url, "unreachable").inc()
                continue
            except BaseException as error:
                await here.aclose()
                if isinstance(error, httpx.HTTPError):
                    raise ApiError(f"{url} did not answer: {error!r}.", status=502) from None
                raise
            here.push_async_callback(got.aclose)
            if got.status_code == 503 and len(left) > 1:
                await here.aclose()
                refused.add(url)
                self.requests.labels(url, 503).inc()
                continue
            await stack.enter_async_context(here)
            return url, got

    def _to(self, url: str, sent: httpx.Request, **headers: str) -> httpx.Request:
        """A request for one of the servers; headers: in place of its own."""
        kept = {k: v for k, v in sent.headers.items() if k not in ("host", "content-length")}
        target = httpx.URL(url.rstrip("/") + sent.url.path)
        return self.client.build_request(
            sent.method, target, content=sent.content, headers=kept | headers
        )


async def _pass_on(got: httpx.Response, stack: AsyncExitStack) -> AsyncIterator[bytes]:
    """The pieces as they come. A server that dies in the middle is said in the stream."""
    async with stack:
        try:
            async for piece in got.aiter_raw():
                yield piece
        except httpx.HTTPError as error:
            told = ApiError(f"The server was lost in the middle: {error!r}.", status=502).body
            yield b"data: " + json.dumps(told).encode() + b"\n\ndata: [DONE]\n\n"


def read_body(data: bytes) -> tuple[dict[str, Any], Query]:
    """A body, and what the policy is to know of it."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise BadRequestError("The body is no JSON.") from None
    if not isinstance(body, dict):
        raise BadRequestError("The body must be a JSON object.")
    text = json.dumps(body.get("messages") or body.get("prompt") or "")
    key = str(body.get("user") or body.get("session_id") or "")
    blocks = tuple(text_blocks(f"{body.get('model')} {body.get('cache_salt')} {text}", CHARACTERS))
    return body, Query(key, blocks, len(text) * TOKENS // CHARACTERS, TOKENS)


def passed(request: Request) -> dict[str, str]:
    """The headers that a server gets, too."""
    return {name: request.headers[name] for name in PASSED if name in request.headers}


def kept(got: httpx.Response) -> dict[str, str]:
    """The headers of a server's answer that its client gets, too."""
    return {name: got.headers[name] for name in ANSWERED if name in got.headers}


def posted(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], headers: dict[str, str]
) -> httpx.Request:
    """A request with this body, whatever it holds: a server says what is wrong with it."""
    content = json.dumps(body).encode()
    headers = {**headers, "content-type": "application/json"}
    return client.build_request("POST", path, content=content, headers=headers)


async def _told(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error)
