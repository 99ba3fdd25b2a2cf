"""`AsyncLLM`: an LLM for an event loop; many answers at once, each an async generator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from nanovllm.batching.events import Aborted, Failed
from nanovllm.generation.errors import RequestError
from nanovllm.generation.events import Finished, Prefilled, TokenGenerated
from nanovllm.generation.keys import sample_seed
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.request import prepare
from nanovllm.llm.llm import LLM
from nanovllm.llm.prompts import AnyPrompt, Prompt, read_params, read_prompt
from nanovllm.llm.results import completion_output, prompt_output
from nanovllm.llm.tracking import Tracker
from nanovllm.outputs import CompletionOutput, RequestOutput

if TYPE_CHECKING:  # a release may lack lab 07; then it is missing when the first answer begins
    from nanovllm.serving.async_engine import AsyncEngine
    from nanovllm.serving.stream import Stream


class AsyncLLM:
    """A language model that answers while an event loop does other things (lab 07's AsyncEngine).

    Its arguments are LLM's; the engine must be lab 04's or higher. One loop at a time uses it.
    Where nobody shuts it down, `asyncio.run` does, when it cancels what still runs.

        async with AsyncLLM() as llm:
            async for output in llm.generate("Once upon a time", SamplingParams(max_tokens=32)):
                print(output.outputs[0].text)
    """

    def __init__(self, model: str | Path | None = None, **options: Any) -> None:
        self.llm = LLM(model, **options)
        self.llm.level.require("lab04", "AsyncLLM")
        self._engine: AsyncEngine | None = None
        self._guard: asyncio.Task[None] | None = None  # stops the engine when it is cancelled
        self._open: set[int] = set()  # the engine's ids of requests that have not ended
        self._streams: dict[str, Stream | None] = {}  # by request id, those that are read
        self._early: set[str] = set()  # given up before they had a stream
        self._numbers = count()

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()

    def generate(
        self,
        prompt: AnyPrompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int | None = None,
        deadline: float | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """Answer one prompt: each output holds all of the answers so far, the last one `finished`.

        request_id: what `abort` takes; a number of its own if None. priority, deadline: as LLM's.
        Who stops reading gives the request up. Raises RequestError, at this call; and at the first
        output for a request_id in use, or what only the engine refuses.
        """
        asked = read_prompt(prompt, self.llm.tokenizer)
        [params] = read_params(sampling_params, 1)
        params = asked.params(params)
        number = next(self._numbers)
        request_id = str(number) if request_id is None else request_id
        self.llm._check(asked, params)
        if params.seed is None and self.llm.seed is not None:
            params = replace(params, seed=sample_seed(self.llm.seed, number))
        return self._answer(asked, params, request_id, priority, deadline)

    async def abort(self, request_id: str) -> None:
        """Give a request up: its generator ends with what there is, its finish_reason "abort"."""
        stream = self._streams.get(request_id)
        if stream is not None and self._engine is not None:
            self._engine.cancel(stream, "abort")
        elif request_id in self._streams:
            self._early.add(request_id)

    async def shutdown(self) -> None:
        """Stop the engine's thread; open requests end with EngineDeadError."""
        guard = self._guard
        if guard is not None and guard.get_loop() is asyncio.get_running_loop():
            guard.cancel()
            await asyncio.wait([guard])

    async def _until_cancelled(self, engine: AsyncEngine) -> None:
        """Else the thread would outlive its loop, and Python would end it within a step."""
        try:
            await asyncio.Event().wait()
        finally:
            await engine.stop()
            for request_id in self._open:  # nobody has told the engine
                self.llm.runner.engine.abort(request_id)
            self._open.clear()
            if self._engine is engine:
                self._engine = self._guard = None

    async def _answer(
        self, prompt: Prompt, params: SamplingParams, request_id: str, *urgency: Any
    ) -> AsyncIterator[RequestOutput]:
        if request_id in self._streams:
            raise RequestError(f"request_id {request_id!r} is in use; choose another.")
        llm, engine, stream = self.llm, self._started(), None
        self._streams[request_id] = None
        try:
            if params.structured_outputs is not None:
                params = await asyncio.to_thread(prepare, params, llm.model, llm.tokenizer)
            with self._urgency.saying(*urgency):
                stream = engine.submit([prompt.token_ids], params, name=request_id)
            [number] = stream.request_ids
            self._streams[request_id] = stream
            self._open.add(number)
            cached = self._hits.watch(stream.request_ids)
            if request_id in self._early:
                engine.cancel(stream, "abort")
            answers = [CompletionOutput(index, "", []) for index in range(params.n)]
            tracker, scores = Tracker({number: params.n}, use_tqdm=False), None
            async for events in stream:
                for event in events:
                    if isinstance(event, Prefilled | TokenGenerated | Finished):
                        tracker(event)
                    if isinstance(event, Prefilled) and event.logprobs is not None:
                        scores = prompt_output(event.logprobs, llm.tokenizer)
                    self._take(answers, event)
                done = all(answer.finished for answer in answers)
                if done:
                    self._open.discard(number)
                cost = tracker.metrics(number, len(prompt.token_ids), cached.get(number, 0))
                yield RequestOutput(
                    request_id, prompt.text, prompt.token_ids, list(answers), cost, done, scores
                )
        finally:
            if stream is not None:
                engine.cancel(stream, "abort")  # nothing, if it has ended
                self._hits.forget(stream.request_ids)
            del self._streams[request_id]
            self._early.discard(request_id)

    def _started(self) -> AsyncEngine:
        loop = asyncio.get_running_loop()
        if self._engine is None or self._guard is None or self._guard.get_loop() is not loop:
            from nanovllm.serving.async_engine import AsyncEngine
            from nanovllm.serving.prompt_hits import PromptHits
            from nanovllm.serving.urgency import WithUrgency

            self._urgency, self._hits = WithUrgency(self.llm.runner.engine), PromptHits()
            self._engine = AsyncEngine(cast(Any, self._urgency), [self._hits.observe])
            self._engine.start()
            self._guard = loop.create_task(self._until_cancelled(self._engine))
        return self._engine

    def _take(self, answers: list[CompletionOutput], event: object) -> None:
        """Bring an answer up to an event of it."""
        match event:
            case TokenGenerated():
                old = answers[event.index]
                ids = [*old.token_ids, event.token_id]
                answers[event.index] = replace(old, text=old.text + event.text, token_ids=ids)
            case Finished():
                found = completion_output(event.completion, self.llm.tokenizer)
                answers[found.index] = found
            case Aborted():
                answers[event.index] = replace(answers[event.index], finish_reason="abort")
            case Failed():
                raise event.error
