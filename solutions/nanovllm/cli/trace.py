"""`nanovllm trace`: what recorded requests are like, and made-up ones of real shape."""

import csv
import json
import shlex
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nanovllm.cli.engine import select_code
from nanovllm.cli.errors import Refused
from nanovllm.cli.options import HELP, Code, above_zero, finite
from nanovllm.cli.screen import complain

if TYPE_CHECKING:
    from nanovllm.observability.shapes import Shape
    from nanovllm.observability.trace import Trace

SHAPES = "azure-code, azure-conversation or mooncake-conversation"
trace = typer.Typer(
    rich_markup_mode=HELP, no_args_is_help=True, help="What a trace is like, or a made-up one."
)
Report = Annotated[Path | None, typer.Option(help="Write the report, with pictures, as .html.")]
Seed = Annotated[int, typer.Option(help="The same seed makes the same trace.")]
Rate = Annotated[
    float | None,
    typer.Option(callback=above_zero, help="Requests a second. (default: the shape's own)"),
]


@trace.command()
def analyse(
    file: Annotated[Path, typer.Argument(help="Azure's, BurstGPT's or Mooncake's form; .gz too.")],
    report: Report = None,
    as_json: Annotated[bool, typer.Option("--json", help="The figures as JSON.")] = False,
    code: Code = None,
) -> None:
    """Arrivals, bursts, lengths, sessions and reachable prefix hits of a trace."""
    select_code(code)
    from nanovllm.planning.page import of_trace
    from nanovllm.planning.summary import summarize

    found = read(file)
    figures = summarize(found)
    if as_json:
        typer.echo(json.dumps({f.name: {"value": f.value, "note": f.note} for f in figures}))
    else:
        show(f"{file.name}", ("figure", "value", ""), figures)
    if report:
        write(report, of_trace(file.name, found, figures))


@trace.command()
def generate(
    shape: Annotated[str, typer.Argument(help=f"{SHAPES}.")],
    out: Annotated[Path, typer.Option(help="The file to write, a JSON object a line.")],
    seconds: Annotated[
        float, typer.Option(min=1.0, callback=finite, help="How long it lasts.")
    ] = 3600.0,
    rate: Rate = None,
    seed: Seed = 0,
    code: Code = None,
) -> None:
    """Make up a trace with the quantiles, bursts and sessions of a published one."""
    select_code(code)
    from nanovllm.observability.files import write_jsonl
    from nanovllm.observability.generator import generate

    made = generate(known(shape), seconds, seed, rate)
    try:
        write_jsonl(made, out)
    except OSError as error:
        raise Refused(f"{out} cannot be written: {error.strerror}.") from None
    look = shlex.join(["nanovllm", "trace", "analyse", str(out)])
    complain(f"wrote {len(made):,} requests to {out}; look at them: {look}")


def known(shape: str) -> "Shape":
    """A shape by its name. Raises Refused."""
    from nanovllm.observability.shapes import SHAPES as FOUND

    if shape not in FOUND:
        raise Refused(f"the shape {shape} is not known: use {SHAPES}.")
    return FOUND[shape]


def read(file: Path) -> "Trace":
    """The trace in a file. Raises Refused, TraceError."""
    from nanovllm.observability.files import load

    try:
        return load(file)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise Refused(f"{file} cannot be read: {why}.") from None


def show(title: str, head: tuple[str, ...], rows: object, right: tuple[int, ...] = (1,)) -> None:
    """A table on the screen; columns `right` are of numbers."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for i, name in enumerate(head):
        table.add_column(name, justify="right" if i in right else "left")
    for row in rows:  # pyright: ignore[reportGeneralTypeIssues]
        table.add_row(*row)
    Console().print(table)


def write(path: Path, text: str) -> None:
    """Write a report. Raises Refused."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror}.") from None
    complain(f"wrote {path}")
