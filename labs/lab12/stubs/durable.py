"""Requests that outlive their connection and their server: `Prefer: respond-async`, and keys."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import orjson
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nanovllm.resilience.errors import JournalFullError
from nanovllm.resilience.journal import Journal, Record
from nanovllm.resilience.told import cut_short, status_of
from nanovllm.serving.errors import ApiError, BadRequestError, NotFoundError, OverloadedError
from nanovllm.serving.responses import JsonResponse, error_response
from nanovllm.serving.sse import EventReader

PATHS = ("/v1/completions", "/v1/chat/completions")
FETCH = "/v1/requests/"
LONGEST_KEY = 255
BUSY = (429, 503)  # nothing was computed: later it may be
AT_ONCE = 256  # requests of the journal that are computed or wait for a place
PAUSES = (0.2, 5.0)  # seconds until the next try: the first, doubled each time, and the longest
log = logging.getLogger("nanovllm.resilience")


class Durable:
    """An ASGI layer inside RequestMiddleware, which has read the body and knows the API key.

    - `Prefer: respond-async`: 202 and an id as soon as the request is in the journal; the answer is
      at `/v1/requests/ID` (202 until it is there). It is computed again where the server ended,
      and waits while the server is full or not ready, or gave it up by itself; an error of its own
      is its answer, and so is what a timeout, or somebody who cancels it, leaves of it.
    - `Idempotency-Key`: a repeat gets the first one's answer, also while that is computed. The same
      key with another body is a 400. Of an answer that is an error of the server, no key is kept,
      unless somebody was told 202.

    Who has another API key sees nothing of either.
    """

    def __init__(self, app: ASGIApp, journal: Journal) -> None:
        self.app, self.journal = app, journal
        self._running: dict[str, asyncio.Task[Record | None]] = {}
        self._promised: set[str] = set()  # of those that run, who was told 202
        self._places = asyncio.Semaphore(AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
            return
        try:
            answer = await self._answer(scope, receive)
        except ApiError as error:
            answer = error_response(error)
        if answer is None:
            await self.app(scope, receive, send)
        else:
            await answer(scope, receive, send)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Once the server has started, what an earlier one left open is computed."""
        self._whole = scope["app"]

        async def started(message: Message) -> None:
            await send(message)
            if message["type"] == "lifespan.startup.complete":
                for record in self.journal.open_requests():
                    self._start(record, promised=True)

        await self.app(scope, receive, started)

    async def _answer(self, scope: Scope, receive: Receive) -> Response | None:
        """The answer from the journal; None for a request that is none of its affair."""
        path, owner = scope["path"], _owner(scope)
        if scope["method"] == "GET" and path.startswith(FETCH):
            return self._fetch(path.removeprefix(FETCH), owner)
        headers = Headers(scope=scope)
        later = "respond-async" in headers.get("prefer", "")
        key = headers.get("idempotency-key")
        if scope["method"] != "POST" or path not in PATHS or not (later or key is not None):
            return None
        if key is not None and not 0 < len(key) <= LONGEST_KEY:
            raise BadRequestError(f"Idempotency-Key must have 1 to {LONGEST_KEY} characters.")
        asked = (await receive()).get("body", b"")
        name, digest = f"req-{uuid.uuid4().hex}", hashlib.sha256(path.encode() + asked).hexdigest()
        record = self._accept(Record(name, owner, key, path, digest, _seeded(asked, later)), later)
        if later:
            where = FETCH + record.id
            said = {"id": record.id, "status": "open" if record.open else "done", "url": where}
            return JsonResponse(
                said, 202, {"Location": where, "Preference-Applied": "respond-async"}
            )
        if record.open:
            record = await asyncio.shield(self._running[record.id]) or record
        if record.open:
            raise OverloadedError("The request was not answered; send it again.")
        return _response(record)

    def _accept(self, record: Record, promised: bool) -> Record:
        try:
            taken = self.journal.accept(record)
        except JournalFullError as error:
            raise OverloadedError(str(error)) from None
        if taken.id != record.id and taken.digest != record.digest:
            raise BadRequestError(
                "This Idempotency-Key was used for another request; give each a key of its own.",
                param="Idempotency-Key",
            )
        if taken.open:
            self._start(taken, promised)
        return taken

    def _fetch(self, request_id: str, owner: str) -> Response:
        record = self.journal.find(request_id)
        if record is None or record.owner != owner:
            raise NotFoundError(f"There is no request {request_id!r:.80}.")
        if record.open:
            return JsonResponse({"id": record.id, "status": "open"}, 202, {"Retry-After": "1"})
        return _response(record)

    def _start(self, record: Record, promised: bool) -> None:
        """Compute it, unless that is under way."""
        if promised:
            self._promised.add(record.id)
        if record.id in self._running:
            return
        task = asyncio.ensure_future(self._compute(record))
        self._running[record.id] = task

        def ended(_: Any) -> None:
            self._running.pop(record.id, None)
            self._promised.discard(record.id)

        task.add_done_callback(ended)

    async def _compute(self, record: Record) -> Record | None:
        """Ask until there is an answer, and keep it; None where there will be none."""
        pauses = _pauses()
        async with self._places:
            while True:
                answered = await self._ask(record)
                status, cut = _outcome(answered)
                if not (cut or status in BUSY) or record.id not in self._promised:
                    break
                await asyncio.sleep(next(pauses))
        if cut:
            return None
        if (status >= 500 or status in BUSY) and record.id not in self._promised:
            await self._write(record, self.journal.drop)  # a repeat is a new try
            return answered
        what = answered.status or 500, answered.media_type or "", answered.answer or b""
        await self._write(record, lambda name: self.journal.end(name, *what))
        return answered

    async def _write(self, record: Record, write: Callable[[str], None]) -> None:
        """Now, or as soon as the disk takes it again."""
        pauses = _pauses()
        while True:
            try:
                return write(record.id)
            except JournalFullError as error:
                fields = {"request_id": record.id, "error": str(error)}
                log.error("the journal cannot be written", extra={"fields": fields})
            await asyncio.sleep(next(pauses))

    async def _ask(self, record: Record) -> Record:
        """Ask the app, as if the request came now; the record with what it says."""
        status, headers, pieces = 500, Headers(), []

        async def receive() -> Message:
            if asked:
                return asked.pop()
            await asyncio.Event().wait()  # nobody leaves
            raise AssertionError

        async def send(message: Message) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status, headers = message["status"], Headers(raw=message["headers"])
            else:
                pieces.append(message.get("body", b""))

        asked = [{"type": "http.request", "body": record.body, "more_body": False}]
        scope = _scope(record, send) | {"app": self._whole}
        try:
            await self.app(scope, receive, send)
        except Exception:
            log.exception("request failed", extra={"fields": {"request_id": record.id}})
        media = headers.get("content-type", "")
        return replace(record, status=status, media_type=media, answer=b"".join(pieces))


def _pauses() -> Iterator[float]:
    pause, longest = PAUSES
    while True:
        yield pause
        pause = min(2 * pause, longest)


def _scope(record: Record, send: Send) -> dict[str, Any]:
    """What RequestMiddleware would give the app for this request."""
    return {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST",
        "scheme": "http", "path": record.path, "raw_path": record.path.encode(), "root_path": "",
        "query_string": b"", "headers": [(b"content-type", b"application/json")],
        "client": None, "server": None, "state": {}, "request_id": record.id, "log": {},
        "straight": send, "api_key": record.owner,
    }  # fmt: skip


def _owner(scope: Scope) -> str:
    return scope.get("api_key", "")


def _seeded(body: bytes, whole: bool) -> bytes:
    """The body with a seed, so that it is answered alike when it is computed again; an answer that
    is fetched later comes whole. What is no JSON object stays, for the app to refuse."""
    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body
    if not isinstance(said, dict):
        return body
    if said.get("seed") is None:
        said["seed"] = secrets.randbits(31)
    if whole:
        said["stream"] = False
        said.pop("stream_options", None)
    return orjson.dumps(said)


def _outcome(answered: Record) -> tuple[int, bool]:
    """The status, of a stream that of the error at its end; and whether the server stopped before
    the answer was whole, which nobody had asked it to."""
    status, answer = answered.status or 500, answered.answer or b""
    if status != 200:
        return status, False
    streamed = (answered.media_type or "").startswith("text/event-stream")
    pieces = EventReader().push(answer) if streamed else [answer]
    bodies = [orjson.loads(piece) for piece in pieces if piece != "[DONE]"]
    statuses = [status_of(body["error"]) for body in bodies if body.get("error")]
    cut = any(cut_short(choice) for body in bodies for choice in body.get("choices", ()))
    return (statuses or [status])[-1], cut


def _response(record: Record) -> Response:
    return Response(record.answer, record.status or 200, media_type=record.media_type)
