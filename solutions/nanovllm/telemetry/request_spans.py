"""Lab 13's spans of a server's requests, as OpenTelemetry's."""

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from fastapi import Request
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

import nanovllm
from nanovllm.batching.events import EngineEvent
from nanovllm.generation.params import SamplingParams
from nanovllm.observability.span import RequestInfo, Span
from nanovllm.observability.spans import SpanBuilder
from nanovllm.observability.trace_context import parse_traceparent
from nanovllm.serving.stream import Stream
from nanovllm.serving.writers import ChatWriter, Writer

SCOPE = InstrumentationScope("nanovllm", nanovllm.__version__)
SAMPLED = TraceFlags(TraceFlags.SAMPLED)
KINDS = {"server": SpanKind.SERVER, "internal": SpanKind.INTERNAL}
STATUSES = {"ok": Status(), "error": Status(StatusCode.ERROR)}


class RequestSpans:
    """A watcher of requests and an observer of the engine's events; of the event loop's thread.

    A span ends as its last event comes, and goes to `processor`. A request that its client's
    `traceparent` says not to sample has none. A request of several prompts has a span of each.
    """

    def __init__(
        self, processor: SpanProcessor, resource: Resource, model: str, clock: Callable[[], float]
    ) -> None:
        self.processor, self.resource, self.model = processor, resource, model
        self.epoch = time.time() - clock()
        self.builder = SpanBuilder(_new_id)
        # By engine request id: attributes besides, and the line of the log.
        self.asked: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}

    def watch(
        self, request: Request, stream: Stream, writer: Writer, params: SamplingParams
    ) -> None:
        """A request was submitted: follow it. Its first span gives its trace's id to the log."""
        context = parse_traceparent(request.headers.get("traceparent"))
        if context is not None:
            request.scope["log"]["trace_id"] = f"{context.trace_id:032x}"
            if not context.sampled:
                return
        operation = "chat" if isinstance(writer, ChatWriter) else "text_completion"
        asked = {
            "gen_ai.provider.name": "nanovllm",
            "gen_ai.response.model": self.model,
            "gen_ai.request.id": request.scope["request_id"],
            "gen_ai.request.max_tokens": params.max_tokens,
            "gen_ai.request.temperature": params.temperature,
            "gen_ai.request.top_p": params.top_p,
            "gen_ai.request.choice.count": params.n,
        }
        for request_id, prompt in zip(stream.request_ids, writer.prompts, strict=True):
            info = RequestInfo(
                request_id, self.model, len(prompt), params.n, operation, context, writer.id
            )
            self.builder.begin(info)
            self.asked[request_id] = asked, request.scope["log"]

    def observe(self, events: Sequence[EngineEvent], usage: float) -> None:
        """Take in the events of a step."""
        if self.asked:
            for event in events:
                for span in self.builder.on(event):
                    self._end(span)

    def _end(self, span: Span) -> None:
        attributes = dict(span.attributes)
        more, log = self.asked[attributes["nanovllm.request_id"]]
        log["trace_id"] = f"{span.trace_id:032x}"
        if span.kind == "server":
            attributes |= more
            del self.asked[attributes["nanovllm.request_id"]]

        def context(span_id: int) -> SpanContext:
            return SpanContext(span.trace_id, span_id, is_remote=False, trace_flags=SAMPLED)

        made = ReadableSpan(
            span.name,
            context(span.span_id),
            context(span.parent_id) if span.parent_id else None,
            self.resource,
            attributes,
            kind=KINDS[span.kind],
            status=STATUSES[span.status],
            start_time=self._nanoseconds(span.start),
            end_time=self._nanoseconds(span.end),
            instrumentation_scope=SCOPE,
        )
        self.processor.on_end(made)

    def _nanoseconds(self, seconds: float) -> int:
        """The engine's clock as nanoseconds since 1970."""
        return int((self.epoch + seconds) * 1e9)


def _new_id() -> int:
    return random.getrandbits(64) or 1
