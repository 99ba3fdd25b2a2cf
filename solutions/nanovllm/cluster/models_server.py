"""Several models at one address, under one budget: a request's `model` chooses (given)."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import time
from collections import Counter as Counts
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import FastAPI, Request
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.metrics_core import Metric
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

import nanovllm
from nanovllm.cluster.errors import ClusterError
from nanovllm.cluster.model_pool import ModelPool
from nanovllm.cluster.model_specs import BudgetError, ModelSpec
from nanovllm.serving.app import Server
from nanovllm.serving.config import ServeConfig
from nanovllm.serving.errors import ApiError, NotFoundError, OverloadedError
from nanovllm.serving.failures import api_error
from nanovllm.serving.middleware import RequestMiddleware
from nanovllm.serving.responses import JsonResponse, error_response
from nanovllm.serving.routes import PROMETHEUS

ASKED = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/compact")
log = logging.getLogger("nanovllm.serving")


class ModelsServer:
    """Lab 07's servers, one for each model that is loaded; `app` is what uvicorn runs.

    make(spec) gives the server of a model, not started. A model is loaded by the first request for
    it, in a thread; the requests of models that are there go on meanwhile. A request without
    `model` is for the first. Where the models in use leave no room, the answer is a 503.

    Limits of `config` count for each model by itself.
    """

    def __init__(
        self,
        specs: Sequence[ModelSpec],
        budget: int,
        make: Callable[[ModelSpec], Server],
        config: ServeConfig,
    ) -> None:
        self.make, self.created = make, int(time.time())
        self.specs, self.budget = list(specs), budget
        self.draining = False
        self.pool = ModelPool(budget, self.specs, self._load, self._unload)
        self.servers: dict[str, Server] = {}  # that are loaded, the newest use last
        self.turn = asyncio.Lock()  # the pool is for one at a time
        self.loading = False  # somebody has the turn, and all that the pool unloads for it has left
        self.meanwhile: Counts[str] = Counts()  # users more since then, by model
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self.loads = Counter(
            "nanovllm:model_loads", "How often a model was loaded.", ("model_name",),
            registry=self.registry,
        )  # fmt: skip
        self.held = Gauge("nanovllm:models_bytes", "Of models loaded.", registry=self.registry)
        self.app = FastAPI(title="nano-vLLM, several models", lifespan=self._lifespan)
        self.app.add_middleware(RequestMiddleware, config=config)
        self.app.add_exception_handler(Exception, _told)
        self.app.add_exception_handler(ApiError, _told)
        self.app.add_exception_handler(HTTPException, _told)
        if config.allowed_origins:
            self.app.add_middleware(
                CORSMiddleware, allow_origins=config.allowed_origins, allow_methods=["*"],
                allow_headers=["*"], expose_headers=["X-Request-Id", "Retry-After"],
            )  # fmt: skip
        self._routes()

    @property
    def names(self) -> list[str]:
        """What may be asked for."""
        return [spec.name for spec in self.specs]

    @property
    def said(self) -> str:
        """What a user is told at the start."""
        sizes = ", ".join(f"{spec.name} {spec.nbytes / 1e6:.1f}" for spec in self.specs)
        budget = f"{self.budget / 1e6:.1f}"
        return f"loaded when asked for; MB of each: {sizes}; of all at once: {budget}"

    def _routes(self) -> None:
        @self.app.get("/v1/models")
        async def models() -> Response:
            """All that may be asked for, loaded or not."""
            cards = [self._card(spec) for spec in self.specs]
            return JsonResponse({"object": "list", "data": cards})

        @self.app.get("/v1/models/{model:path}")
        async def model(model: str) -> Response:
            return JsonResponse(self._card(self._resolve(model)))

        @self.app.get("/health")
        @self.app.get("/health/live")
        async def health() -> Response:
            for server in self.servers.values():
                if server.engine.error is not None:
                    raise server.engine.error
            if self.draining:
                raise OverloadedError("The server is shutting down.")
            return JsonResponse({"status": "ok", "loaded": list(self.servers)})

        @self.app.get("/version")
        async def version() -> Response:
            return JsonResponse({"version": nanovllm.__version__})

        @self.app.get("/metrics")
        async def metrics() -> Response:
            self.held.set(self.pool.used)
            return Response(generate_latest(self.registry), headers={"Content-Type": PROMETHEUS})

        self.app.mount("/", self._forward)

    def _card(self, spec: ModelSpec) -> dict[str, Any]:
        return {
            "id": spec.name, "object": "model", "created": self.created, "owned_by": "nanovllm",
            "root": spec.name, "parent": None, "loaded": spec.name in self.servers,
        }  # fmt: skip

    def _resolve(self, name: str) -> ModelSpec:
        try:
            return self.pool.resolve(name)
        except ClusterError as error:
            raise NotFoundError(str(error), param="model") from None

    def collect(self) -> Iterator[Metric]:
        """The metrics of all models that are loaded, those of one name together."""
        found: dict[str, Metric] = {}
        for server in self.servers.values():
            for metric in server.metrics.registry.registry.collect():
                if metric.name in found:
                    found[metric.name].samples += metric.samples
                else:
                    found[metric.name] = metric
        yield from found.values()

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What is for a model goes to its server, word for word; any other path is not there."""
        if scope["path"].startswith("/dashboard"):  # of the model that was used last
            if not self.servers:
                raise NotFoundError("No model is loaded yet; ask one for something first.")
            await list(self.servers.values())[-1].app(scope, receive, send)
            return
        if scope["path"] not in ASKED:
            raise HTTPException(404, "There is no such path here; /docs has those that are.")
        if scope["method"] != "POST":
            raise HTTPException(405, "This path takes a POST.", {"Allow": "POST"})
        message = await receive()
        asked = self.specs[0].name
        with suppress(ValueError):
            body = json.loads(message.get("body") or b"null")
            if isinstance(body, dict) and body.get("model") is not None:
                asked = str(body["model"])
        spec = self._resolve(asked)
        first = [message]

        async def receiving() -> Any:
            return first.pop() if first else await receive()

        server = await self._acquire(spec)
        try:
            await server.app(scope, receiving, send)
        finally:
            await asyncio.shield(self._release(spec))

    async def _acquire(self, spec: ModelSpec) -> Server:
        if self.loading and spec.name in self.servers:
            self.meanwhile[spec.name] += 1
            return self.servers[spec.name]
        async with self.turn:
            if self.draining:
                raise OverloadedError("The server is shutting down.")
            try:
                server = await asyncio.to_thread(self.pool.acquire, spec.name)
            except BudgetError as error:
                raise OverloadedError(f"{error} Ask again later.") from None
            finally:
                self._settle()
            if spec.name not in self.servers:
                server.engine.start()
                self.loads.labels(spec.name).inc()
            self.servers.pop(spec.name, None)
            self.servers[spec.name] = server
            return server

    async def _release(self, spec: ModelSpec) -> None:
        if self.loading:
            self.meanwhile[spec.name] -= 1
            return
        async with self.turn:
            self.pool.release(spec.name)

    def _settle(self) -> None:
        """A load is over: tell the pool who came and went meanwhile."""
        self.loading = False
        for name, more in self.meanwhile.items():
            for _ in range(abs(more)):
                (self.pool.acquire if more > 0 else self.pool.release)(name)
        self.meanwhile.clear()

    def _load(self, spec: ModelSpec) -> Server:
        self.loading = True
        gc.collect()  # of a model that has left: an app and its server refer to each other
        started = time.perf_counter()
        server = self.make(spec)
        server.app.user_middleware.clear()  # ids, keys and sizes are seen to by this server's own
        fields = {"model": spec.name, "seconds": round(time.perf_counter() - started, 3)}
        log.info("model loaded", extra={"fields": fields})
        return server

    def _unload(self, spec: ModelSpec, server: Server) -> None:
        async def stop() -> None:
            del self.servers[spec.name]
            await server.engine.stop()

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result()
        log.info("model unloaded", extra={"fields": {"model": spec.name}})

    @asynccontextmanager
    async def _lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        self._loop = asyncio.get_running_loop()
        yield
        for server in self.servers.values():
            await server.engine.stop()

    async def drain(self) -> None:
        """Take on nothing more, and wait for what is open."""
        self.draining = True
        await asyncio.gather(*(server.drain() for server in self.servers.values()))


async def _told(request: Request, error: Exception) -> Response:
    if not isinstance(error, ApiError | HTTPException):
        log.error("request failed", exc_info=error)
    return error_response(api_error(error))
