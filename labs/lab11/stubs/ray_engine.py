"""Engine and gateway as deployments of Ray Serve (given)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from nanovllm.cluster.router import read_body
from nanovllm.serving.app import Server
from nanovllm.serving.errors import ApiError, NotFoundError
from nanovllm.serving.responses import JsonResponse, error_response

Headers = Sequence[tuple[bytes, bytes]]


class _Loaded:
    """The server of a model; Ray calls `__del__` when another model takes its place."""

    def __init__(self, server: Server) -> None:
        self.server = server
        server.engine.start()

    async def __del__(self) -> None:
        await self.server.engine.stop()


class Engine:
    """A replica: lab 07's server of each model that it was asked for.

    make(name) gives the server of a model, not started.
    """

    def __init__(self, make: Callable[[str], Server], models: int) -> None:
        from ray import serve  # pyright: ignore[reportMissingImports]

        self.model_id = serve.get_multiplexed_model_id

        @serve.multiplexed(max_num_models_per_replica=models)
        async def load(name: str) -> _Loaded:
            return _Loaded(await asyncio.to_thread(make, name))

        self.load = load

    async def answer(self, path: str, headers: Headers, body: bytes) -> AsyncIterator[Any]:
        """The ASGI messages of an answer, as they come: those that are there, in one list.

        A caller that leaves ends the request.
        """
        loaded = await self.load(self.model_id())
        gone, sent = asyncio.Event(), asyncio.Queue()
        first = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            if first:
                return first.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST",
            "path": path, "raw_path": path.encode(), "query_string": b"", "headers": headers,
            "scheme": "http", "server": None, "client": None, "root_path": "",
        }  # fmt: skip
        running = asyncio.create_task(loaded.server.app(scope, receive, sent.put))
        running.add_done_callback(lambda task: sent.put_nowait(None))
        try:
            ended = False
            while not ended:
                ready = [await sent.get()]
                while not sent.empty():
                    ready.append(sent.get_nowait())
                ended = ready[-1] is None
                yield ready[:-1] if ended else ready
            running.result()
        finally:
            gone.set()


class Gateway:
    """OpenAI's paths; each request goes to a replica that the router of Engine chooses.

    engine: a handle of that deployment. names: of the models, the first for who names none.
    """

    def __init__(self, engine: Any, names: Sequence[str]) -> None:
        self.engine, self.names = engine, tuple(names)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """By Ray, once in the replica."""
        app = FastAPI(title="nano-vLLM on Ray Serve")

        @app.get("/v1/models")
        async def models() -> Response:
            cards = [{"id": name, "object": "model", "owned_by": "nanovllm"} for name in self.names]
            return JsonResponse({"object": "list", "data": cards})

        @app.get("/health")
        async def health() -> Response:
            return JsonResponse({"status": "ok"})

        @app.exception_handler(ApiError)
        async def told(request: Request, error: ApiError) -> Response:
            return error_response(error)

        app.mount("/", self._forward)
        return app

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        from ray.exceptions import RayError  # pyright: ignore[reportMissingImports]

        data = await Request(scope, receive).body()
        body, _ = read_body(data)
        name = str(body.get("model") or self.names[0])
        if name not in self.names:
            raise NotFoundError(f"The model `{name}` does not exist.", param="model")
        handle = self.engine.options(multiplexed_model_id=name, stream=True)
        headers = [pair for pair in scope["headers"] if pair[0] != b"content-length"]
        answer = handle.answer.remote(scope["path"], headers, data)
        try:
            async for messages in answer:
                for message in messages:
                    await send(message)
        except RayError as error:
            raise ApiError(f"The replica was lost: {type(error).__name__}.", status=502) from None
        finally:
            answer.cancel()
