"""A server of a base model and its adapters: `model` of a request chooses."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from nanovllm.generation.params import SamplingParams
from nanovllm.llm.lora_params import LoraParams
from nanovllm.serving.app import Server
from nanovllm.serving.handlers import Handlers
from nanovllm.serving.protocol import ChatCompletionRequest, CompletionRequest
from nanovllm.serving.responses import JsonResponse
from nanovllm.serving.writers import Writer


class LoraHandlers(Handlers):
    """Handlers that know the names of adapters."""

    adapters: Collection[str] = ()

    async def completion(self, body: CompletionRequest, request: Request) -> Response:
        """POST /v1/completions."""
        self._take(body, request)
        return await super().completion(body, request)

    async def chat(self, body: ChatCompletionRequest, request: Request) -> Response:
        """POST /v1/chat/completions."""
        self._take(body, request)
        return await super().chat(body, request)

    def _take(self, body: CompletionRequest | ChatCompletionRequest, request: Request) -> None:
        """Note the adapter; for all else the request is one for the base model."""
        if body.model in self.adapters:
            request.scope["adapter"], body.model = body.model, None

    async def adapt(
        self, request: Request, params: SamplingParams, writer: Writer
    ) -> SamplingParams:
        """The parameters with the request's adapter, if it is for one."""
        name = request.scope.get("adapter")
        if name is None:
            return params
        writer.model = name
        return LoraParams.of(params, name)


class LoraServer(Server):
    """Lab 07's server of a base model and adapters; its engine is a LoraEngine."""

    def __init__(self, adapters: Collection[str], *args: Any) -> None:
        super().__init__(*args)
        old = self.handlers
        parts = (old.engine, old.reader, old.config, old.admission, old.sizes, old.hits)
        self.handlers = handlers = LoraHandlers(*parts, old.urgency)
        handlers.adapters = adapters
        _list_adapters(self.app, adapters)


def _list_adapters(app: FastAPI, adapters: Collection[str]) -> None:
    """Put paths that know the adapters before the server's own, which know one model."""
    own = {route.path: route.endpoint for route in app.routes if isinstance(route, APIRoute)}
    router = APIRouter()

    async def cards() -> list[dict[str, Any]]:
        [base] = json.loads((await own["/v1/models"]()).body)["data"]
        others = [base | {"id": name, "root": name, "parent": base["id"]} for name in adapters]
        return [base, *others]

    @router.get("/v1/models")
    async def models() -> Response:
        """The base model, and its adapters."""
        return JsonResponse({"object": "list", "data": await cards()})

    @router.get("/v1/models/{model:path}")
    async def model(model: str) -> Response:
        """One of them."""
        for card in await cards():
            if card["id"] == model:
                return JsonResponse(card)
        return await own["/v1/models/{model:path}"](model)

    app.router.routes[:0] = router.routes
