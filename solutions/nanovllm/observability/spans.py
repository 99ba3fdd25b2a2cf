"""Spans of requests, from the engine's events."""

from collections.abc import Callable
from dataclasses import dataclass, field

from nanovllm.batching.events import Aborted, Admitted, EngineEvent, Failed, Preempted, Queued
from nanovllm.generation.events import Finished, TokenGenerated
from nanovllm.observability.span import RequestInfo, Span, request_span


@dataclass
class OpenSample:
    """A sample on its way: its phase now, and what it has said."""

    phase: str
    since: float
    tokens: int = 0
    first_token: float | None = None


@dataclass
class OpenRequest:
    """A request on its way: its span's ids, and its samples; who has ended is in `reasons`."""

    info: RequestInfo
    trace_id: int
    span_id: int
    start: float | None = None
    open: dict[int, OpenSample] = field(default_factory=dict)
    tokens: int = 0
    first_token: float | None = None
    reasons: dict[int, str] = field(default_factory=dict)
    error: str = ""


class SpanBuilder:
    """Turns the events of an engine into spans; times are those of the events.

    A request has one span, and each of its samples phases below it, which follow one another
    without a gap from the sample's arrival to its end:

    - `queue`: from Queued to the first Admitted
    - `prefill`: from an Admitted to the next token
    - `decode`: from a token on, until it is preempted or ends
    - `preempted`: from a Preempted to the next Admitted

    A phase's attributes are `nanovllm.request_id` and `nanovllm.sample`. A phase of no length is
    left out. What a sample's phases last is what it lasts.

    The request's span begins with its first Queued and ends with its last sample, whatever order
    they end in; `request_span` makes it. It is in the caller's trace; without a caller it has a new
    one. Its reasons are a list by sample: the completion's "stop" or "length", "abort" or "error".
    Output tokens are those of all samples, the first token is the first of any sample. With a
    Failed, its error is the name of the error's class.

    Events of requests that were not begun, or whose span has ended, change nothing; a request that
    is begun twice before its first event has one span.

    >>> from itertools import count
    >>> builder = SpanBuilder(count(1).__next__)
    >>> builder.begin(RequestInfo(7, "tiny", prompt_tokens=5))
    >>> builder.on(Queued(7, 0, 1.0)), [span.name for span in builder.on(Admitted(7, 0, 3.0))]
    ([], ['queue'])
    """

    ### BEGIN SOLUTION
    def __init__(self, new_id: Callable[[], int]) -> None:
        self.new_id = new_id
        self.requests: dict[int, OpenRequest] = {}

    def begin(self, info: RequestInfo) -> None:
        context = info.context
        trace_id = context.trace_id if context else self.new_id()
        self.requests[info.request_id] = OpenRequest(info, trace_id, self.new_id())

    def on(self, event: EngineEvent) -> list[Span]:
        request = self.requests.get(getattr(event, "request_id", -1))
        index = getattr(event, "index", None)
        if request is None or index is None:
            return []
        if isinstance(event, Queued):
            request.start = event.time if request.start is None else min(request.start, event.time)
            request.open[index] = OpenSample("queue", event.time)
            return []
        sample = request.open.get(index)
        if sample is None:
            return []
        if isinstance(event, Admitted):
            return self._move(request, index, "prefill", event.time)
        if isinstance(event, Preempted):
            return self._move(request, index, "preempted", event.time)
        if isinstance(event, TokenGenerated):
            request.tokens += 1
            if request.first_token is None:
                request.first_token = event.time
            if sample.phase != "decode":
                return self._move(request, index, "decode", event.time)
            return []
        if isinstance(event, Finished | Aborted | Failed):
            return self._end(request, index, event)
        return []

    def _move(self, request: OpenRequest, index: int, phase: str, time: float) -> list[Span]:
        """End the phase of a sample, and begin another."""
        sample = request.open[index]
        ended, since = sample.phase, sample.since
        sample.phase, sample.since = phase, time
        if time == since:
            return []
        names = {"nanovllm.request_id": request.info.request_id, "nanovllm.sample": index}
        span_id = self.new_id()
        return [Span(ended, request.trace_id, span_id, request.span_id, since, time, names)]

    def _end(
        self, request: OpenRequest, index: int, event: Finished | Aborted | Failed
    ) -> list[Span]:
        """End a sample, and with the last one its request."""
        spans = self._move(request, index, "", event.time)
        del request.open[index]
        if isinstance(event, Finished):
            request.reasons[index] = event.completion.finish_reason
        elif isinstance(event, Failed):
            request.reasons[index], request.error = "error", type(event.error).__name__
        else:
            request.reasons[index] = "abort"
        if len(request.reasons) == request.info.samples:
            del self.requests[request.info.request_id]
            spans.append(
                request_span(
                    request.info,
                    (request.trace_id, request.span_id),
                    (request.start or 0.0, event.time),
                    [request.reasons[i] for i in sorted(request.reasons)],
                    request.tokens,
                    request.first_token,
                    request.error,
                )
            )
        return spans

    ### END SOLUTION
