"""Rows of published traces as one schema."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from nanovllm.observability.errors import TraceError
from nanovllm.observability.trace import TracedRequest

Row = tuple[int, Mapping[str, Any]]  # number of the line, and its fields by name


def in_order(requests: Sequence[TracedRequest]) -> list[TracedRequest]:
    """The requests by time, counted from the earliest; of equal times, the given order stays.

    >>> [(r.time, r.prompt) for r in in_order([TracedRequest(9.0, 1, 1), TracedRequest(7.5, 2, 1)])]
    [(0.0, 2), (1.5, 1)]
    """
    raise NotImplementedError("lab13 task 1: in_order")


def whole(number: int, row: Mapping[str, Any], column: str, least: int = 0) -> int:
    """A field that must be a whole number of at least `least`, written as text or not (given).

    Raises:
        TraceError: it is missing, no whole number, or too small. The message has the line's
            number, the column's name and what stands there.

    >>> whole(7, {"n": "12"}, "n")
    12
    >>> whole(7, {"n": "x"}, "n")
    Traceback (most recent call last):
    nanovllm.observability.errors.TraceError: line 7: n must be a whole number (>= 0), got 'x'.
    """
    value = row.get(column)
    try:
        found = float(value)  # pyright: ignore[reportArgumentType]  # None is refused below
        if found != int(found) or found < least:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise TraceError(
            f"line {number}: {column} must be a whole number (>= {least}), got {value!r}."
        ) from None
    return int(found)


def seconds(number: int, row: Mapping[str, Any], column: str) -> float:
    """A field that must be a finite number (given). Raises TraceError as `whole` does."""
    try:
        found = float(row.get(column))  # pyright: ignore[reportArgumentType]  # None: refused below
        if found - found != 0:  # not finite
            raise ValueError
    except (TypeError, ValueError):
        raise TraceError(
            f"line {number}: {column} must be a finite number, got {row.get(column)!r}."
        ) from None
    return found


def read_azure(rows: Iterable[Row]) -> list[TracedRequest]:
    """Azure's form: TIMESTAMP (a date and time of day), ContextTokens, GeneratedTokens; in order.

    A TIMESTAMP may have up to seven digits behind the second. A prompt has at least one token,
    here and in the other forms. No row says that its request failed: all are `ok`, also with 0
    tokens of output; so they are in Mooncake's form.

    >>> text = "2023-11-16 18:17:03.9799600"
    >>> read_azure([(2, {"TIMESTAMP": text, "ContextTokens": "4808", "GeneratedTokens": "10"})])
    [TracedRequest(time=0.0, prompt=4808, output=10, session='', blocks=(), ok=True)]
    """
    raise NotImplementedError("lab13 task 1: read_azure")


def read_burstgpt(rows: Iterable[Row]) -> list[TracedRequest]:
    """BurstGPT's form: Timestamp (seconds), Request tokens, Response tokens; in order.

    A row with 0 response tokens is a request that failed. "Session ID" is there in some files; an
    empty one is none, but 0 is one.

    >>> row = {"Timestamp": "5", "Request tokens": "472", "Response tokens": "0"}
    >>> read_burstgpt([(2, row)])[0].ok
    False
    """
    raise NotImplementedError("lab13 task 1: read_burstgpt")


def read_mooncake(rows: Iterable[Row]) -> list[TracedRequest]:
    """Mooncake's form: timestamp (milliseconds), input_length, output_length, hash_ids; in order.

    hash_ids are the blocks, a list of whole numbers, which may be empty but not missing;
    "session_id" is there in some files, as in BurstGPT's.

    >>> row = {"timestamp": 27000, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}
    >>> [r.blocks for r in read_mooncake([(1, row)])]
    [(0, 1)]
    """
    raise NotImplementedError("lab13 task 1: read_mooncake")
