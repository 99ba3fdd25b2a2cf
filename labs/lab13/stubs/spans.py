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

    def __init__(self, *args, **kwargs):
        raise NotImplementedError("lab13 task 4: SpanBuilder")
