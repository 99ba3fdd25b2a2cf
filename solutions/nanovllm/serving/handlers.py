"""The way of a request: read, admit, submit, answer (given)."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

from fastapi import Request
from starlette.responses import Response

from nanovllm.batching.events import EngineEvent, Failed
from nanovllm.generation.begun import BegunParams
from nanovllm.generation.errors import RequestError
from nanovllm.generation.events import TokenGenerated
from nanovllm.generation.params import SamplingParams
from nanovllm.serving.admission import Admission
from nanovllm.serving.async_engine import AsyncEngine
from nanovllm.serving.config import ServeConfig
from nanovllm.serving.deadline import deadline
from nanovllm.serving.deltas import Delta, merge
from nanovllm.serving.errors import BadRequestError
from nanovllm.serving.exact import Exact
from nanovllm.serving.failures import check_model
from nanovllm.serving.field_names import naming_fields
from nanovllm.serving.prompt_hits import PromptHits
from nanovllm.serving.prompts import PromptReader
from nanovllm.serving.protocol import ChatCompletionRequest, CompletionRequest, SamplingFields
from nanovllm.serving.request_sizes import RequestSizes
from nanovllm.serving.responses import EventStreamResponse, JsonResponse, told
from nanovllm.serving.sampling import sampling_params
from nanovllm.serving.stream import Stream
from nanovllm.serving.streaming import ChunkWriter, event_stream, while_connected
from nanovllm.serving.structured import with_structure
from nanovllm.serving.urgency import WithUrgency
from nanovllm.serving.writers import ChatWriter, CompletionWriter, Writer

T = TypeVar("T")
Watcher = Callable[[Request, Stream, Writer, SamplingParams], None]
LONG = 2000  # bytes of a body from which reading its prompt is worth a thread


class Handlers:
    """Answers completions and chats with one engine."""

    def __init__(
        self,
        engine: AsyncEngine,
        reader: PromptReader,
        config: ServeConfig,
        admission: Admission,
        sizes: RequestSizes,
        hits: PromptHits | None,
        urgency: WithUrgency,
    ) -> None:
        self.engine = engine
        self.reader = reader
        self.config = config
        self.admission = admission
        self.sizes, self.hits = sizes, hits
        self.urgency = urgency
        self.watchers: list[Watcher] = []  # told of each request as it is submitted

    async def completion(self, body: CompletionRequest, request: Request) -> Response:
        """POST /v1/completions."""
        check_model(body.model, self.config.model_name)
        prompts = await self.read(request, lambda: self.reader.completion(body))
        writer = self._writer(CompletionWriter, "cmpl", body, request, prompts)
        writer.tops = body.logprobs
        if body.echo:
            writer.echo = self._echo(body, prompts)
            writer.only_prompt = body.max_tokens == 0
            if writer.only_prompt:
                body.max_tokens = 1  # the engine draws one at least: nobody sees it
            if body.prompt_logprobs is None:
                body.prompt_logprobs = body.logprobs
        return await self._answer(body, request, prompts, writer)

    async def chat(self, body: ChatCompletionRequest, request: Request) -> Response:
        """POST /v1/chat/completions."""
        check_model(body.model, self.config.model_name)
        prompt = await self.read(request, lambda: self.reader.chat(body))
        writer = self._writer(ChatWriter, "chatcmpl", body, request, [prompt])
        writer.tops = (body.top_logprobs or 0) if body.logprobs else None
        last = body.messages[-1]
        if body.echo and last.role == "assistant":  # as vLLM: only what the answer goes on with
            writer.echo = [last.content or ""]
        return await self._answer(body, request, [prompt], writer)

    async def read(self, request: Request, reading: Callable[[], T]) -> T:
        """Read a prompt: a long one in a thread, so that others are not kept waiting."""
        if len(await request.body()) < LONG:
            return reading()
        return await asyncio.to_thread(reading)

    def _echo(self, body: CompletionRequest, prompts: list[list[int]]) -> list[str]:
        if body.return_token_ids:  # as vLLM: the ids tell it
            return [""] * len(prompts)
        is_one = isinstance(body.prompt, str) or isinstance(body.prompt[0], int)
        given = [body.prompt] if is_one else body.prompt
        whole = body.truncate_prompt_tokens is None
        return [
            text if isinstance(text, str) and whole else self.reader.tokenizer.decode(ids)
            for text, ids in zip(given, prompts, strict=True)
        ]

    def _writer(
        self,
        kind: type[Writer],
        prefix: str,
        body: SamplingFields,
        request: Request,
        prompts: list[list[int]],
    ) -> Writer:
        options = body.stream_options
        include_usage = bool(body.stream and options and options.include_usage)
        return kind(
            id=f"{prefix}-{body.request_id or request.scope['request_id']}",
            model=self.config.model_name,
            created=int(time.time()),
            tokenizer=self.reader.tokenizer,
            prompts=prompts,
            n=body.n or 1,
            include_usage=include_usage,
            continuous_usage=bool(include_usage and options and options.continuous_usage_stats),
            with_ids=bool(body.return_token_ids),
            tell_ids=body.output_token_ids is not None,
            ids_as_text=bool(body.return_tokens_as_token_ids),
            with_scores=body.prompt_logprobs is not None,
        )

    async def adapt(
        self, request: Request, params: SamplingParams, writer: Writer
    ) -> SamplingParams:
        """What a server that is one of several (lab 11) makes of a request; here nothing."""
        return params

    async def _answer(
        self, body: SamplingFields, request: Request, prompts: list[list[int]], writer: Writer
    ) -> Response:
        key = request.scope["api_key"]
        longest = max(map(len, prompts))
        with naming_fields(body):
            params = sampling_params(body, longest, self.reader.max_model_len)
        params = await with_structure(params, body, self.engine.engine)
        if body.output_token_ids:
            if len(prompts) > 1:
                raise BadRequestError(
                    "output_token_ids go on with one prompt.", param="output_token_ids"
                )
            params = BegunParams.behind(params, body.output_token_ids)
            writer.go_on(len(body.output_token_ids))
        params = await self.adapt(request, params, writer)
        with naming_fields(body), self.urgency.saying(body.priority, body.deadline):
            self.admission.enter(key, params.n * len(prompts), self.engine.num_open)
            stream = self.engine.submit(prompts, params, name=writer.id)
        if self.hits is not None:
            writer.cached = self.hits.watch(stream.request_ids)
        self.sizes.asked(params, len(prompts))
        self.admission.charge(key, sum(map(len, prompts)))
        request.scope["log"] |= {"id": writer.id, "stream": bool(body.stream)}
        for watch in self.watchers:
            watch(request, stream, writer, params)
        exact = Exact(stream, writer, scored=params.prompt_logprobs is not None)
        steps = self._steps(stream, key, writer, exact, request.scope["log"])
        loop = asyncio.get_running_loop()
        limit = deadline(loop, self._seconds(request, loop), self.engine.cancel, stream)
        if body.stream:
            pieces = event_stream(_logged(steps, request), cast(ChunkWriter, writer))
            return EventStreamResponse(pieces, limit, lambda: self._leave(stream))
        try:
            with limit:
                choices = await while_connected(request.receive, _gather(steps))
        finally:
            self._leave(stream)
        return JsonResponse(writer.whole(choices))

    def _seconds(self, request: Request, loop: asyncio.AbstractEventLoop) -> float | None:
        """What is left for a request: by the settings, and by whoever sent it (lab 12)."""
        limits = [self.config.timeout]
        if "ends_at" in request.scope:  # on the loop's clock
            limits.append(max(0.0, request.scope["ends_at"] - loop.time()))
        return min((limit for limit in limits if limit is not None), default=None)

    def _leave(self, stream: Stream) -> None:
        """Nobody reads the stream any more."""
        if self.hits is not None:
            self.hits.forget(stream.request_ids)
        self.engine.cancel(stream, "disconnected")

    async def _steps(
        self, stream: Stream, key: str, writer: Writer, exact: Exact, log: dict[str, Any]
    ) -> AsyncIterator[list[Delta]]:
        async for events in stream:
            deltas = [delta for part in token_by_token(events) for delta in merge(stream, part)]
            if exact.wanted:
                deltas = exact(events, deltas)
            for delta in deltas:
                writer.count(delta)
                self.admission.charge(key, len(delta.token_ids))
                if delta.finish_reason:
                    log["finish_reason"] = delta.finish_reason
            log["completion_tokens"] = writer.completion_tokens
            yield deltas


def token_by_token(events: Sequence[EngineEvent]) -> Iterator[list[EngineEvent]]:
    """The events in order, cut before each second token of a sample: guesses bring several a step.

    Raises the RequestError of a request that could not be answered to its end.

    >>> tokens = [TokenGenerated(0, 0, token, "", time=0.0) for token in (5, 6)]
    >>> [len(part) for part in token_by_token(tokens)]
    [1, 1]
    """
    part: list[EngineEvent] = []
    seen: set[tuple[int, int]] = set()
    for event in events:
        if isinstance(event, TokenGenerated):
            sample = event.request_id, event.index
            if sample in seen:
                yield part
                part, seen = [], set()
            seen.add(sample)
        elif isinstance(event, Failed) and isinstance(event.error, RequestError):
            raise event.error
        part.append(event)
    yield part


async def _logged(steps: AsyncIterator[T], request: Request) -> AsyncIterator[T]:
    """The same; an error that ends a stream, whose client hears little of it, is in the log."""
    try:
        async for step in steps:
            yield step
    except Exception as error:
        told(error, request.scope["request_id"])
        raise


async def _gather(steps: AsyncIterator[list[Delta]]) -> list[Delta]:
    """All deltas of each choice as one."""
    choices: dict[int, Delta] = {}
    texts: dict[int, list[str]] = {}
    async for deltas in steps:
        for delta in deltas:
            whole = choices.setdefault(delta.index, Delta(delta.index))
            texts.setdefault(delta.index, []).append(delta.text)
            whole.token_ids += delta.token_ids
            whole.logprobs += delta.logprobs
            whole.finish_reason, whole.stop_reason = delta.finish_reason, delta.stop_reason
    for index, pieces in texts.items():
        choices[index].text = "".join(pieces)
    return list(choices.values())
