"""The server: one engine, and everything that its paths share (given)."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

import nanovllm
from nanovllm.batching.budget_counts import LiveBudget, counted
from nanovllm.batching.engine import Engine
from nanovllm.generation.errors import RequestError
from nanovllm.generation.params import ParamsError
from nanovllm.serving.admission import Admission
from nanovllm.serving.async_engine import AsyncEngine
from nanovllm.serving.budget_counts import BudgetCounts
from nanovllm.serving.cache_info import export_cache_config
from nanovllm.serving.config import ServeConfig
from nanovllm.serving.deadline import drain
from nanovllm.serving.errors import ApiError
from nanovllm.serving.failures import api_error
from nanovllm.serving.guess_counts import GuessCounts
from nanovllm.serving.handlers import Handlers
from nanovllm.serving.history import History
from nanovllm.serving.kv_use import KvUse
from nanovllm.serving.memory import Memory
from nanovllm.serving.metrics import Metrics
from nanovllm.serving.middleware import RequestMiddleware
from nanovllm.serving.monitor import Monitor
from nanovllm.serving.openapi import ERRORS, document
from nanovllm.serving.prompt_hits import PromptHits
from nanovllm.serving.prompts import PromptReader
from nanovllm.serving.ranks import RankGauges, rank_rows
from nanovllm.serving.readable import readable
from nanovllm.serving.request_sizes import RequestSizes
from nanovllm.serving.responses import error_response
from nanovllm.serving.restart_count import RestartCount
from nanovllm.serving.routes import add_routes
from nanovllm.serving.snapshot import kv_facts
from nanovllm.serving.stepping import Observer
from nanovllm.serving.streaming import ClientGoneError
from nanovllm.serving.swap_counts import SwapCounts
from nanovllm.serving.urgency import WithUrgency
from nanovllm.tokenization.chat import ChatTemplate
from nanovllm.tokenization.errors import ChatTemplateError, TokenizerError

log = logging.getLogger("nanovllm.serving")
EXPECTED = (
    ApiError, RequestValidationError, HTTPException, RequestError, ParamsError, ChatTemplateError,
    TokenizerError,
)  # fmt: skip


class Server:
    """Answers with one engine; `app` is what uvicorn runs.

    engine: lab 04's, with its tokenizer. template: None where the model has none; open_template:
    the same, `open_ended`, for conversations whose last message goes on.
    """

    def __init__(
        self,
        engine: Engine,
        config: ServeConfig,
        template: ChatTemplate | None = None,
        open_template: ChatTemplate | None = None,
    ) -> None:
        self.config = config
        self.created = int(time.time())
        self.metrics = Metrics(config.model_name)
        adaptive = LiveBudget(engine) if counted(engine) is not None else None
        self.monitor = Monitor(engine.clock, budget=cast(Any, adaptive))
        sizes = RequestSizes(self.metrics.registry)
        self.history = History(engine.clock, self._name_of)
        watching = (self.metrics, self.monitor, self.history, sizes)
        observers: list[Observer] = [each.observe for each in watching]
        hits = PromptHits() if getattr(engine.store, "prefix_stats", None) else None
        if hits is not None:
            observers.append(hits.observe)
        self.most_guesses: int = getattr(engine, "num_speculative_tokens", 0)  # with lab 08
        if self.most_guesses:
            observers.append(GuessCounts(self.metrics.registry, self.most_guesses).observe)
        if adaptive is not None:
            observers.append(BudgetCounts(self.metrics.registry, adaptive).observe)
        if getattr(engine.store, "swapping", None) is not None:  # with lab 05, and swap_space
            observers.append(SwapCounts(self.metrics.registry, engine).observe)
        if rank_rows(engine):
            observers.append(RankGauges(self.metrics.registry, engine).observe)
        if hasattr(engine, "restarts"):  # with lab 12
            observers.append(RestartCount(self.metrics.registry, engine).observe)
        self.guardian: Any = None  # with lab 12, where it is supervised
        self.background: list[Callable[[], Coroutine[Any, Any, None]]] = []  # while it runs
        self.memory = Memory(engine)
        self.kv_use = KvUse(self.metrics.registry, kv_facts(engine.store))
        observers.append(self.kv_use.observe)
        self.fragmentation = self.metrics.registry.gauge(
            "kv_cache_internal_fragmentation", "Share of the slots in held blocks without a token."
        )
        self.most_blocks: int = getattr(engine.store, "num_blocks", 0)
        self.tell_cache = export_cache_config(self.metrics.registry, engine.store)
        urgency = WithUrgency(engine)
        self.engine = AsyncEngine(cast(Any, urgency), observers)
        tokenizer: Any = engine.tokenizer  # a server has one
        self.reader = PromptReader(tokenizer, template, engine.max_model_len, open_template)
        self.admission = Admission(config, engine.config.max_num_seqs)
        self.handlers = Handlers(
            self.engine, self.reader, config, self.admission, sizes, hits, urgency
        )
        self.app = FastAPI(
            title="nano-vLLM",
            redirect_slashes=False,
            redoc_url=None,
            lifespan=self._lifespan,
            responses=ERRORS,
        )
        document(self.app, "nano-vLLM", nanovllm.__version__)
        self.app.add_middleware(RequestMiddleware, config=config)
        for kind in EXPECTED:
            self.app.add_exception_handler(kind, _expected)
        self.app.add_exception_handler(ClientGoneError, _gone)
        if config.allowed_origins:  # last, so around all the others: a preflight needs no key
            self.app.add_middleware(
                CORSMiddleware,
                allow_origins=config.allowed_origins,
                allow_methods=["*"],
                allow_headers=["*"],
                expose_headers=["X-Request-Id", "Retry-After"],
            )
        add_routes(self.app, self)

    def _name_of(self, request_id: int) -> str:
        stream = self.engine.streams.get(request_id)
        return str(request_id) if stream is None else stream.name

    @asynccontextmanager
    async def _lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        self.engine.start()
        tasks = [asyncio.ensure_future(work()) for work in self.background]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.engine.stop()

    async def drain(self) -> None:
        """Take on nothing more, and wait for what is open, as long as the settings say."""
        self.admission.draining = True
        log.info("draining", extra={"fields": {"open": self.engine.num_open}})
        cut = await drain(
            lambda: set(self.engine.streams.values()),
            self.engine.cancel,
            self.config.drain_timeout,
        )
        log.info("drained", extra={"fields": {"cut_short": cut}})


async def _expected(request: Request, error: Exception) -> Response:
    if isinstance(error, RequestValidationError):
        error = readable(error)
    found = api_error(error)
    request.scope["log"]["error"] = found.message[:500]
    return error_response(found)


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # nginx's number for it; nobody reads it
