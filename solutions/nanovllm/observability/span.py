"""A span, and a request that becomes one (given)."""

from collections.abc import Mapping, Sequence
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


def request_span(
    info: RequestInfo,
    ids: tuple[int, int],
    times: tuple[float, float],
    reasons: Sequence[str],
    output_tokens: int,
    first_token: float | None = None,
    error: str = "",
) -> Span:
    """The span of a request, by OpenTelemetry's conventions for generative AI.

    ids: of its trace, and its own. times: its start and end. reasons: how each sample ended.
    first_token: when it came. error: the name of an error's class, "" without.
    """
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": info.operation,
        "gen_ai.request.model": info.model,
        "gen_ai.usage.input_tokens": info.prompt_tokens,
        "gen_ai.usage.output_tokens": output_tokens,
        "gen_ai.response.finish_reasons": list(reasons),
        "nanovllm.request_id": info.request_id,
    }
    if info.name:
        attributes["gen_ai.response.id"] = info.name
    if first_token is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = first_token - times[0]
    if error:
        attributes["error.type"] = error
    return Span(
        f"{info.operation} {info.model}",
        *ids,
        info.context.span_id if info.context else 0,
        *times,
        attributes,
        kind="server",
        status="error" if error else "ok",
    )
