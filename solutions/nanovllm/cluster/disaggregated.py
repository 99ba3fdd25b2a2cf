"""A server that computes prompts for others, or goes on behind prompts that others computed."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from nanovllm.cluster.connected_store import ConnectedStore
from nanovllm.cluster.errors import ClusterError, ForeignError, TransferError, WireError
from nanovllm.cluster.kv_transfer_params import (
    Remote,
    answer_of,
    read_remote,
    wants_decode_elsewhere,
)
from nanovllm.cluster.role import RoleConfig
from nanovllm.cluster.transfer_params import Decodes, TransferParams
from nanovllm.cluster.transport import HttpTransport
from nanovllm.cluster.wire import Received, unpack
from nanovllm.generation.params import SamplingParams
from nanovllm.serving.app import Server
from nanovllm.serving.errors import BadRequestError, NotFoundError
from nanovllm.serving.handlers import Handlers
from nanovllm.serving.responses import JsonResponse
from nanovllm.serving.writers import Writer

log = logging.getLogger("nanovllm.serving")


class TransferHandlers(Handlers):
    """Handlers of a server with a role; requests without `kv_transfer_params` are as always."""

    role: RoleConfig
    transport: HttpTransport
    store: ConnectedStore
    fallbacks = 0  # prompts that were computed here because a transfer failed

    async def adapt(
        self, request: Request, params: SamplingParams, writer: Writer
    ) -> SamplingParams:
        """The parameters with this server's side of a transfer, where the request is part of one.

        Prefill: one token of one sample, whatever the request says; its K and V are parked under a
        new name, and the answer's kv_transfer_params tell where. Decode: the request enters the
        engine when the bytes are here, never before. A transfer that fails costs time, not the
        answer: the prompt is computed here.

        Raises:
            BadRequestError: not this server's role, a stranger, K and V of another model.
        """
        given = request.scope.get("kv_transfer")
        if not given:
            return params
        if len(writer.prompts) != 1:
            raise BadRequestError("A transfer is of one prompt.", param="kv_transfer_params")
        ### BEGIN SOLUTION
        try:
            if wants_decode_elsewhere(given):
                return self._prefill(params, writer)
            if self.role.role != "decode":
                raise ClusterError("This server has the role prefill: ask it to do_remote_decode.")
            remote = read_remote(given, self.role.peers)
            if remote is None:
                return params
            received = await self._receive(remote, request)
        except TransferError as error:
            log.warning("transfer failed", extra={"fields": {"error": str(error)}})
            self.fallbacks += 1
            return params
        except ClusterError as error:
            raise BadRequestError(str(error), param="kv_transfer_params") from None
        if received.num_tokens > len(writer.prompts[0]):
            raise BadRequestError(
                f"{received.num_tokens} tokens of K and V came for a prompt of "
                f"{len(writer.prompts[0])}.",
                param="kv_transfer_params",
            )
        return TransferParams.of(params, received)
        ### END SOLUTION

    def _prefill(self, params: SamplingParams, writer: Writer) -> SamplingParams:
        if self.role.role != "prefill":
            raise ClusterError("This server has the role decode: ask it to do_remote_prefill.")
        remote = Remote(self.role.host, self.role.port, uuid.uuid4().hex)
        answer = answer_of(remote, len(writer.prompts[0]))
        writer.extra["kv_transfer_params"] = answer
        one = replace(params, max_tokens=1, min_tokens=0, n=1)
        return TransferParams.of(one, Decodes(remote.transfer_id))

    async def _receive(self, remote: Remote, request: Request) -> Received:
        headers = {"authorization": request.headers.get("authorization", "")}
        data = await self.transport.receive(remote, headers)
        try:
            received = await asyncio.to_thread(unpack, data, self.store.header)
        except ForeignError:
            raise
        except WireError as error:  # cut or spoiled on the way
            raise TransferError(str(error)) from error
        with suppress(TransferError):  # it is freed there when its time is over
            await self.transport.acknowledge(remote, headers)
        return received


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
        handlers.role, handlers.transport = role, HttpTransport(role.seconds)
        handlers.store = self.engine.engine.store
        self.app.user_middleware.append(_middleware())
        _add_routes(self.app, self)

    @asynccontextmanager
    async def _lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        async with super()._lifespan(app):
            yield
        await self.handlers.transport.close()


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
        return Response(data, media_type="application/octet-stream")

    @app.delete("/kv/{transfer_id}")
    async def acknowledge(transfer_id: str) -> Response:
        """They have arrived: their blocks may go to others. Twice is as good as once."""
        found = await server.engine.call(
            lambda engine: engine.store.parking.acknowledge(transfer_id)
        )
        return JsonResponse({"freed": found})
