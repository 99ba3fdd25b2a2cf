"""The W3C's header `traceparent`: which trace a request belongs to, and which span called us."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class TraceContext:
    """The caller's trace and span, as numbers; `sampled`: whether the caller records it."""

    trace_id: int
    span_id: int
    sampled: bool = True


def parse_traceparent(header: str | None) -> TraceContext | None:
    """Read `version-traceid-parentid-flags`; None where there is none, or a wrong one.

    Two, 32, 16 and two digits, hexadecimal and lower case; neither id is 0. Version ff is not
    valid; version 00 has exactly four parts, a later one may have more, each behind a "-". Of the
    flags, the lowest bit says that the trace is sampled. Blanks around the header do not count.
    Source: W3C, Trace Context, section 3.2.

    >>> parse_traceparent("00-0000000000000000000000000000000a-000000000000000b-01")
    TraceContext(trace_id=10, span_id=11, sampled=True)
    >>> parse_traceparent("00-0a-0b-01") is None
    True
    """
    raise NotImplementedError("lab13 task 4: parse_traceparent")


def format_traceparent(context: TraceContext) -> str:
    """The header of version 00 for a call from the span of this context.

    >>> format_traceparent(TraceContext(10, 11, sampled=False))
    '00-0000000000000000000000000000000a-000000000000000b-00'
    """
    raise NotImplementedError("lab13 task 4: format_traceparent")
