"""A span, and a request that becomes one (given)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nanovllm.observability.trace_context import TraceContext


@dataclass(frozen=True)
class Span:
    """Something with a beginning and an end, in seconds; `parent_id` 0: it has no parent.

    kind: "server" for a request, "internal" for its phases. status: "ok" or "error".
    """

    name: str
    trace_id: int
    span_id: int
    parent_id: int
    start: float
    end: float
    attributes: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "internal"
    status: str = "ok"


@dataclass(frozen=True)
class RequestInfo:
    """What is known of a request when it comes in; the attributes of its span are made of it.

    context: of the caller's `traceparent`. operation: "chat" or "text_completion".
    """

    request_id: int
    model: str
    prompt_tokens: int
    samples: int = 1
    operation: str = "chat"
    context: TraceContext | None = None
    name: str = ""  # as the response calls it
