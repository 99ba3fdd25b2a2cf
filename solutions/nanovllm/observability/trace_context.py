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
    ### BEGIN SOLUTION
    pattern = r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
    match = re.fullmatch(pattern, (header or "").strip())
    if match is None:
        return None
    version, trace, span, flags, more = match.groups()
    if version == "ff" or (version == "00" and more is not None):
        return None
    context = TraceContext(int(trace, 16), int(span, 16), bool(int(flags, 16) & 1))
    return context if context.trace_id and context.span_id else None
    ### END SOLUTION


def format_traceparent(context: TraceContext) -> str:
    """The header of version 00 for a call from the span of this context.

    >>> format_traceparent(TraceContext(10, 11, sampled=False))
    '00-0000000000000000000000000000000a-000000000000000b-00'
    """
    ### BEGIN SOLUTION
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.sampled:02x}"
    ### END SOLUTION
