"""Trace files: which form it is, and its rows; compressed or not, of any length (given)."""

import csv
import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from nanovllm.observability.errors import TraceError
from nanovllm.observability.readers import read_azure, read_burstgpt, read_mooncake
from nanovllm.observability.trace import Trace, TracedRequest

Row = tuple[int, Mapping[str, Any]]  # number of the line, from 1, and its fields by name
READERS = {
    "ContextTokens": read_azure,
    "Request tokens": read_burstgpt,
    "input_length": read_mooncake,
}


def load(path: Path | str) -> list[TracedRequest]:
    """Read a trace in Azure's, BurstGPT's or Mooncake's form, `.gz` or plain.

    Raises TraceError where the form is none of them, or a row cannot be used.
    """
    path = Path(path)
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as lines:
        rows = json_rows(lines) if ".json" in path.name else csv_rows(lines)
        first = next(rows, None)
        if first is None:
            raise TraceError(f"{path.name} has no requests.")
        for column, reader in READERS.items():
            if column in first[1]:
                return reader(chain_rows(first, rows))
    columns = sorted(map(str, first[1]))  # None: what a row has behind the last of them
    raise TraceError(
        f"{path.name} has the columns {columns}; one of {sorted(READERS)} was expected."
    )


def chain_rows(first: Row, rest: Iterable[Row]) -> Iterator[Row]:
    """The row that was looked at, and those behind it."""
    yield first
    yield from rest


def csv_rows(lines: Iterable[str]) -> Iterator[Row]:
    """The rows of a CSV file whose first line names the columns.

    >>> list(csv_rows(["a,b", "1,2"]))
    [(2, {'a': '1', 'b': '2'})]
    """
    yield from enumerate(csv.DictReader(lines), 2)


def json_rows(lines: Iterable[str]) -> Iterator[Row]:
    """The rows of a file with a JSON object in each line; empty lines are left out."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError as error:
                raise TraceError(f"line {number} is no JSON: {error}.") from None
            if not isinstance(row, dict):
                raise TraceError(f"line {number} is no JSON object: {line.strip()[:40]!r}.")
            yield number, row


def write_jsonl(trace: Trace, path: Path | str) -> None:
    """Write a trace in Mooncake's form, with `session_id` where there is one."""
    with Path(path).open("w", encoding="utf-8") as out:
        for request in trace:
            row: dict[str, Any] = {
                "timestamp": round(request.time * 1000, 3),
                "input_length": request.prompt,
                "output_length": request.output,
                "hash_ids": list(request.blocks),
            }
            if request.session:
                row["session_id"] = request.session
            out.write(json.dumps(row) + "\n")
