"""A server that computes prompts for others, or goes on behind those of others (given)."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from nanovllm.cluster.connectors import make_connector
from nanovllm.cluster.errors import ClusterError
from nanovllm.cluster.handshake import Handshake
from nanovllm.cluster.role import RoleConfig
from nanovllm.cluster.transfer_params import TransferParams
from nanovllm.cluster.transport import HttpTransport
from nanovllm.generation.params import SamplingParams
from nanovllm.serving.app import Server
from nanovllm.serving.errors import BadRequestError, NotFoundError
from nanovllm.serving.handlers import Handlers
from nanovllm.serving.responses import JsonResponse
from nanovllm.serving.writers import Writer

log = logging.getLogger("nanovllm.serving")


class TransferHandlers(Handlers):
    """Handlers of a server with a role; requests without `kv_transfer_params` are as always."""

    handshake: Handshake
    transport: HttpTransport

    @property
    def fallbacks(self) -> int:
        """Prompts that were computed here because a transfer failed."""
        return self.handshake.fallbacks

    async def adapt(
        self, request: Request, params: SamplingParams, writer: Writer
    ) -> SamplingParams:
        """The parameters with this server's side of a transfer, where the request is part of one.

        Prefill: one token of one sample, whatever the request says. The request enters the engine
        when its K and V are here, never before.

        Raises:
            BadRequestError: not this server's role, a stranger, K and V of another model.
        """
        given = request.scope.get("kv_transfer")
        if not given:
            return params
        if len(writer.prompts) != 1:
            raise BadRequestError("A transfer is of one prompt.", param="kv_transfer_params")
        # A router may send "Bearer " with nothing behind it, which no client may send on.
        key = request.headers.get("authorization", "").strip()
        headers = {"authorization": key} if key else {}
        try:
            side = await self.handshake.take_part(given, len(writer.prompts[0]), headers)
        except ClusterError as error:
            raise BadRequestError(str(error), param="kv_transfer_params") from None
        if side.transfer is None and given.get("do_remote_prefill"):
            log.warning("transfer failed", extra={"fields": {"fallbacks": self.fallbacks}})
        if side.answer is not None:
            writer.extra["kv_transfer_params"] = side.answer
            params = replace(params, max_tokens=1, min_tokens=0, n=1)
        return params if side.transfer is None else TransferParams.of(params, side.transfer)


class TakeTransfer:
    """Takes `kv_transfer_params` out of a body, for TransferHandlers to find in the scope.

    Innermost of the layers: the body has come, and is in one piece.
    """

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request."""
        if scope["type"] != "http" or not scope["path"].endswith("/completions"):
            await self.app(scope, receive, send)
            return
        message = await receive()
        with suppress(ValueError):
            body = json.loads(message.get("body", b""))
            if isinstance(body, dict) and isinstance(body.get("kv_transfer_params"), Mapping):
                scope["kv_transfer"] = body.pop("kv_transfer_params")
                message = message | {"body": json.dumps(body).encode()}
        first = [message]

        async def receiving() -> Any:
            return first.pop() if first else await receive()

        await self.app(scope, receiving, send)


class DisaggregatedServer(Server):
    """Lab 07's server with a role; its engine has a ConnectedStore."""

    def __init__(self, role: RoleConfig, *args: Any) -> None:
        super().__init__(*args)
        old = self.handlers
        parts = (old.engine, old.reader, old.config, old.admission, old.sizes, old.hits)
        self.handlers = handlers = TransferHandlers(*parts, old.urgency)
        header = self.engine.engine.store.header
        self.connector, self.seconds = (
            make_connector(role.connector, role.seconds / 2),
            role.seconds,
        )
        handlers.transport = HttpTransport(role.seconds, self.connector)
        handlers.handshake = Handshake(role, header, handlers.transport)
        self.app.user_middleware.append(_middleware())
        _add_routes(self.app, self)

    @asynccontextmanager
    async def _lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        async with super()._lifespan(app):
            yield
        await self.handlers.transport.close()
        if self.connector is not None:
            self.connector.close()

    def offer(self, transfer_id: str, data: bytes) -> dict[str, Any] | None:
        """What tells the other side where to read the bytes; None: they go in the answer.

        An offer lapses with its transfer, which was parked before: nothing is left in memory.
        """
        if self.connector is None:
            return None
        try:
            offered = self.connector.offer(transfer_id, data)
        except OSError as error:
            log.warning("no room for an offer", extra={"fields": {"why": repr(error)}})
            return None
        asyncio.get_running_loop().call_later(self.seconds, self.connector.withdraw, transfer_id)
        return offered


def _middleware() -> Any:
    from starlette.middleware import Middleware

    return Middleware(TakeTransfer)


def _add_routes(app: FastAPI, server: DisaggregatedServer) -> None:
    @app.get("/kv/{transfer_id}")
    async def fetch(transfer_id: str) -> Response:
        """The K and V of a finished prefill."""
        data = await server.engine.call(lambda engine: engine.store.fetch(transfer_id))
        if data is None:
            raise NotFoundError(f"Nothing is parked as {transfer_id!r}.")
        offered = server.offer(transfer_id, data)
        if offered is not None:
            return JsonResponse(offered)
        return Response(data, media_type="application/octet-stream")

    @app.delete("/kv/{transfer_id}")
    async def acknowledge(transfer_id: str) -> Response:
        """They have arrived: their blocks may go to others. Twice is as good as once."""
        found = await server.engine.call(
            lambda engine: engine.store.parking.acknowledge(transfer_id)
        )
        if server.connector is not None:
            server.connector.withdraw(transfer_id)
        return JsonResponse({"freed": found})
