"""The paths of the server (given)."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Query, Request
from starlette.responses import Response

import nanovllm
from nanovllm.serving.compaction import compact
from nanovllm.serving.errors import BadRequestError, EngineDeadError, NotFoundError, OverloadedError
from nanovllm.serving.failures import check_model
from nanovllm.serving.history import ROWS, SECONDS
from nanovllm.serving.memory import fragmentation
from nanovllm.serving.monitor import WINDOW
from nanovllm.serving.protocol import (
    CancelRequest,
    ChatCompletionRequest,
    CompactRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from nanovllm.serving.ranks import check_alive, rank_rows
from nanovllm.serving.responses import JsonResponse
from nanovllm.serving.snapshot import engine_state

if TYPE_CHECKING:
    from nanovllm.serving.app import Server

PATIENCE = 1.0  # seconds that a scrape waits for the end of a step
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
PAGE = Path(__file__).with_name("dashboard.html")
PAGE_HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
}


def add_routes(app: FastAPI, server: "Server") -> None:
    """Add every path to `app`."""
    _openai(app, server)
    _tokens(app, server)
    _health(app, server)
    _cache(app, server)
    _dashboard(app, server)


def _openai(app: FastAPI, server: "Server") -> None:
    card = {
        "id": server.config.model_name,
        "object": "model",
        "created": server.created,
        "owned_by": "nanovllm",
        "root": server.config.model_name,
        "parent": None,
        "max_model_len": server.reader.max_model_len,
    }

    @app.get("/v1/models")
    async def models() -> Response:
        """The models served: one."""
        return JsonResponse({"object": "list", "data": [card]})

    @app.get("/v1/models/{model:path}")
    async def model(model: str) -> Response:
        """One model."""
        check_model(model, server.config.model_name)
        return JsonResponse(card)

    @app.post("/v1/completions")
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Continue one or more prompts."""
        return await server.handlers.completion(body, request)

    @app.post("/v1/chat/completions")
    async def chat_completions(body: ChatCompletionRequest, request: Request) -> Response:
        """Answer a conversation."""
        return await server.handlers.chat(body, request)


def _tokens(app: FastAPI, server: "Server") -> None:
    reader = server.reader

    @app.post("/tokenize")
    async def tokenize(body: TokenizeRequest, request: Request) -> Response:
        """The token ids of a text or a conversation."""
        check_model(body.model, server.config.model_name)
        if (body.prompt is None) == (body.messages is None):
            raise BadRequestError("Give either prompt or messages.", param="prompt")

        def read() -> list[int]:
            return reader.chat(body) if body.messages else reader.text(body.prompt or "", body)

        ids = await server.handlers.read(request, read)
        strings = [reader.token_strings[i] for i in ids] if body.return_token_strs else None
        return JsonResponse(
            {
                "count": len(ids),
                "max_model_len": reader.max_model_len,
                "tokens": ids,
                "token_strs": strings,
            }
        )

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> Response:
        """The text of token ids."""
        check_model(body.model, server.config.model_name)
        size = reader.tokenizer.vocab_size
        wrong = next((i for i in body.tokens if not 0 <= i < size), None)
        if wrong is not None:
            raise BadRequestError(
                f"tokens names id {wrong}, but this model's ids run from 0 to {size - 1}.",
                param="tokens",
            )
        return JsonResponse({"prompt": reader.tokenizer.decode(body.tokens)})


def _health(app: FastAPI, server: "Server") -> None:
    @app.get("/health")
    @app.get("/health/", include_in_schema=False)
    async def health() -> Response:
        """200 while the engine runs and takes requests: it is ready."""
        if server.guardian is not None:
            server.guardian.check_ready()
        if server.engine.error is not None:
            raise server.engine.error
        check_alive(server.engine.engine)
        if server.admission.draining:
            raise OverloadedError("The server is shutting down.")
        return JsonResponse({"status": "ok"})

    @app.get("/health/live")
    async def live() -> Response:
        """200 unless a new process is what helps."""
        dead = server.engine.error is not None
        if dead if server.guardian is None else not server.guardian.health.live:
            raise EngineDeadError("The server does nothing any more; start it again.")
        return JsonResponse({"status": "ok"})

    @app.get("/version")
    async def version() -> Response:
        """The server's version."""
        return JsonResponse({"version": nanovllm.__version__})

    @app.get("/metrics")
    async def metrics() -> Response:
        """Prometheus metrics, also of an engine that hangs or has ended: as they were then."""
        with suppress(TimeoutError, EngineDeadError):
            async with asyncio.timeout(PATIENCE):
                held = await server.engine.call(lambda engine: engine_state(engine, {}))
            server.fragmentation.set(fragmentation(held["kv"], held["running"]))
        return Response(server.metrics.registry.text(), headers={"Content-Type": PROMETHEUS})


def _cache(app: FastAPI, server: "Server") -> None:
    @app.post("/compact")
    async def compact_blocks(body: CompactRequest | None = None) -> Response:
        """Move what requests hold to the low end of the KV cache; then, if asked, resize it."""
        body = body or CompactRequest()
        check_model(body.model, server.config.model_name)
        now = getattr(server.engine.engine.store, "num_blocks", 0)
        if server.guardian is not None and (body.num_blocks or now) < now:
            await server.guardian.shrinks()
        done = await compact(server.engine, body.num_blocks, server.most_blocks)
        server.tell_cache()
        return JsonResponse(done)


def _dashboard(app: FastAPI, server: "Server") -> None:
    @app.get("/dashboard")
    async def dashboard() -> Response:
        """The page that draws what follows; it needs no API key, what it fetches does."""
        return Response(PAGE.read_bytes(), headers=PAGE_HEADERS)

    @app.get("/dashboard/state")
    async def state() -> Response:
        """What the engine holds now, and what has happened lately."""
        names = {i: stream.name for i, stream in server.engine.streams.items()}
        recent: dict[str, Any] = server.monitor.recent()
        held = await server.engine.call(lambda engine: engine_state(engine, names))
        about = {
            "model": server.config.model_name,
            "draining": server.admission.draining,
            "max_samples": server.admission.limit,
            "seats": server.admission.limit - server.config.max_queue,
            "open_samples": server.engine.num_open,
            "most_guesses": server.most_guesses,
            "ranks": rank_rows(server.engine.engine),
            "memory": server.memory.facts(held["kv"]),
            "fragmentation": fragmentation(held["kv"], held["running"]),
            "recovery": None if server.guardian is None else server.guardian.facts(),
            "ended_kv": server.kv_use.recent(server.monitor.clock(), WINDOW),
        }
        return JsonResponse(about | held | recent)

    @app.get("/dashboard/history")
    async def history(window: float = Query(600.0, gt=0, le=ROWS * SECONDS)) -> Response:
        """The last seconds in rows of ten, and where each request's time went."""
        return JsonResponse(server.history.recent(window))

    @app.post("/dashboard/cancel")
    async def cancel(body: CancelRequest) -> Response:
        """Give up a request by its id; its client gets what there is so far."""
        found = {s for s in server.engine.streams.values() if s.name == body.id}
        if not found:
            raise NotFoundError(f"No open request has the id {body.id!r}.", param="id")
        for stream in found:
            server.engine.cancel(stream, "cancelled")
        return JsonResponse({"cancelled": body.id})
