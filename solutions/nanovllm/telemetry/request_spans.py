"""From the engine's events to spans: one a request, and below it one a phase of a sample."""

import time
from collections.abc import Callable, Sequence

from fastapi import Request
from opentelemetry.sdk.trace import Tracer
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as gen_ai
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from nanovllm.batching.events import (
    Aborted,
    Admitted,
    EngineEvent,
    Failed,
    Preempted,
    Queued,
    Stepped,
)
from nanovllm.generation.events import Finished, Prefilled, TokenGenerated
from nanovllm.generation.params import SamplingParams
from nanovllm.serving.stream import Stream
from nanovllm.serving.writers import ChatWriter, Writer

W3C = TraceContextTextMapPropagator()
REQUEST_ID, SAMPLE = "nanovllm.request_id", "nanovllm.sample"
Sample = tuple[int, int]
Change = Queued | Admitted | Preempted | Finished | Aborted | Failed


class OpenRequest:
    """A request of which a sample is open: its span, and where each of its samples stands."""

    def __init__(self, span: Span, stream: Stream, epoch: float) -> None:
        self.span, self.stream, self.epoch = span, stream, epoch
        self.context = set_span_in_context(span)
        self.phases: dict[Sample, tuple[str, float]] = {}  # its name, since when
        self.reasons: list[str] = []
        self.tokens = 0

    def nanoseconds(self, seconds: float) -> int:
        """The engine's clock as nanoseconds since 1970."""
        return int((self.epoch + seconds) * 1e9)


class RequestSpans:
    """A watcher of requests and an observer of the engine's events; of the event loop's thread.

    A sample's phases have no gaps: queue, prefill (from an admission to the next token, with what a
    preemption lost), decode, preempted. Their lengths add up to the sample's time. A request that
    a client's `traceparent` says not to sample costs no span.
    """

    def __init__(self, tracer: Tracer, model: str, clock: Callable[[], float]) -> None:
        self.tracer, self.model, self.clock = tracer, model, clock
        self.open: dict[int, OpenRequest] = {}  # by engine request id
        self.unread: set[Sample] = set()  # admitted, and no token since

    def watch(
        self, request: Request, stream: Stream, writer: Writer, params: SamplingParams
    ) -> None:
        """A request was submitted: begin its span, and give its ids to the line of the log."""
        chat = isinstance(writer, ChatWriter)
        operation = "chat" if chat else "text_completion"
        epoch = time.time() - self.clock()
        span = self.tracer.start_span(
            f"{operation} {self.model}",
            W3C.extract(request.headers),
            SpanKind.SERVER,
            {
                gen_ai.GEN_AI_OPERATION_NAME: operation,
                gen_ai.GEN_AI_PROVIDER_NAME: "nanovllm",
                gen_ai.GEN_AI_REQUEST_MODEL: self.model,
                gen_ai.GEN_AI_RESPONSE_ID: writer.id,
                gen_ai.GEN_AI_REQUEST_MAX_TOKENS: params.max_tokens,
                gen_ai.GEN_AI_REQUEST_TEMPERATURE: params.temperature,
                gen_ai.GEN_AI_REQUEST_TOP_P: params.top_p,
                gen_ai.GEN_AI_REQUEST_CHOICE_COUNT: params.n,
                gen_ai.GEN_AI_USAGE_INPUT_TOKENS: sum(map(len, writer.prompts)),
                REQUEST_ID: request.scope["request_id"],
            },
            start_time=int((epoch + self.clock()) * 1e9),
        )
        found = span.get_span_context()
        request.scope["log"] |= {
            "trace_id": f"{found.trace_id:032x}",
            "span_id": f"{found.span_id:016x}",
        }
        if span.is_recording():
            self.open |= dict.fromkeys(stream.request_ids, OpenRequest(span, stream, epoch))

    def observe(self, events: Sequence[EngineEvent], usage: float) -> None:
        """Take in the events of a step."""
        for event in events:
            if isinstance(event, TokenGenerated):
                sample = event.request_id, event.index
                if sample in self.unread:
                    self.unread.remove(sample)
                    self._move(self.open[event.request_id], sample, "decode", event.time)
            elif not isinstance(event, Stepped | Prefilled):
                request = self.open.get(event.request_id)
                if request is not None:
                    self._take(event, request)

    def _take(self, event: Change, request: OpenRequest) -> None:
        sample = event.request_id, event.index
        match event:
            case Queued():
                request.phases[sample] = "queue", event.time
            case Admitted():
                self._move(request, sample, "prefill", event.time)
                self.unread.add(sample)
            case Preempted():
                self._move(request, sample, "preempted", event.time)
                self.unread.discard(sample)
            case _:
                self.unread.discard(sample)
                self._close(request, sample, event.time)
                self._ended(event, request)

    def _move(self, request: OpenRequest, sample: Sample, name: str, now: float) -> None:
        self._close(request, sample, now)
        request.phases[sample] = name, now

    def _close(self, request: OpenRequest, sample: Sample, now: float) -> None:
        """The span of a sample's present phase."""
        name, since = request.phases.pop(sample)
        stream = request.stream
        number = stream.n * stream.request_ids.index(sample[0]) + sample[1]
        start = request.nanoseconds(since)
        span = self.tracer.start_span(
            name, request.context, attributes={SAMPLE: number}, start_time=start
        )
        span.end(request.nanoseconds(now))

    def _ended(self, event: Finished | Aborted | Failed, request: OpenRequest) -> None:
        """The end of a sample; the last one ends its request."""
        if isinstance(event, Finished):
            request.reasons.append(event.completion.finish_reason)
            request.tokens += len(event.completion.token_ids)
        elif isinstance(event, Aborted):
            request.reasons.append(request.stream.reason or "abort")
            request.tokens += len(event.token_ids)
        else:
            request.reasons.append("error")
            request.span.set_status(StatusCode.ERROR, str(event.error))
        if len(request.reasons) == request.stream.n * len(request.stream.request_ids):
            self._finish(request, event.time)

    def _finish(self, request: OpenRequest, now: float) -> None:
        for request_id in request.stream.request_ids:
            del self.open[request_id]
        request.span.set_attributes(
            {
                gen_ai.GEN_AI_RESPONSE_MODEL: self.model,
                gen_ai.GEN_AI_RESPONSE_FINISH_REASONS: request.reasons,
                gen_ai.GEN_AI_USAGE_OUTPUT_TOKENS: request.tokens,
            }
        )
        request.span.end(request.nanoseconds(now))
