"""`nanovllm plan`: from a trace, a model and a card to replicas, their settings and their price."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nanovllm.cli.describe import BYTES, shape_of
from nanovllm.cli.engine import select_code
from nanovllm.cli.errors import Refused
from nanovllm.cli.options import Code
from nanovllm.cli.trace import SHAPES, Rate, Report, Seed, known, read, show, write

if TYPE_CHECKING:
    from nanovllm.observability.capacity_interface import Slo
    from nanovllm.observability.cards import ModelSize


def plan(
    trace: Annotated[
        str, typer.Argument(help=f"A file, or a shape to make one up: {SHAPES}.")
    ] = "azure-conversation",
    model: Annotated[
        str, typer.Option("--model", "-m", help="Folder, hub name, or llama-3.1-8b.")
    ] = "llama-3.1-8b",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "bfloat16",
    card: Annotated[str, typer.Option(help="h100, a100 or l4: a replica has one.")] = "h100",
    slo: Annotated[
        str, typer.Option(help="What 99 of 100 requests must keep, in ms.")
    ] = "ttft:1000,tpot:50",
    price: Annotated[float, typer.Option(min=0.0, help="Dollars an hour of a card.")] = 3.0,
    headroom: Annotated[
        float, typer.Option(min=0.0, max=0.9, help="Share of the card's memory left free.")
    ] = 0.1,
    most: Annotated[int, typer.Option(min=1, help="Replicas to try at most.")] = 64,
    minutes: Annotated[
        float,
        typer.Option(min=0.1, max=10080, help="Plan for the busiest so many minutes of the trace."),
    ] = 10.0,
    times: Annotated[
        float, typer.Option(min=0.001, help="So many times the trace's traffic.")
    ] = 1.0,
    rate: Rate = None,
    seed: Seed = 0,
    compare: Annotated[
        bool,
        typer.Option("--compare", help="Also by mean values, with int8 and with a prefix cache."),
    ] = False,
    report: Report = None,
    code: Code = None,
) -> None:
    """Replicas for a trace by simulation, each setting with its reason, and what they cost."""
    select_code(code)
    from nanovllm.observability.cards import CARDS
    from nanovllm.observability.generator import generate
    from nanovllm.observability.trace import faster
    from nanovllm.planning import page
    from nanovllm.planning.planner import Asked, busiest, variants
    from nanovllm.planning.planner import plan as planned
    from nanovllm.planning.summary import summarize

    if card not in CARDS:
        raise Refused(f"--card {card} is not known: use {', '.join(CARDS)}.")
    objective = read_slo(slo)
    if Path(trace).exists() or "." in trace:
        whole = read(Path(trace))
    else:  # long enough for its busiest minutes to be busy ones
        whole = generate(known(trace), max(3600.0, 60 * minutes), seed, rate)
    part = busiest(faster(whole, times), 60 * minutes)
    figures = summarize(part)
    asked = Asked(part, size_of(model, dtype), CARDS[card], objective, price, headroom, most)
    answer = planned(asked)
    others = list(variants(answer)) if compare else []
    typer.echo(answer.plan.reason)
    show(f"{asked.model.name} on {card}", page.PRICES, page.price_rows(answer), tuple(range(7)))
    show("a replica", ("setting", "value", "why"), page.setting_rows(answer))
    if others:
        show("under other assumptions", page.OTHERS, page.variant_rows(others), (1, 2, 3))
    if report:
        write(report, page.of_plan(Path(trace).name, answer, others, figures))


def read_slo(text: str) -> "Slo":
    """`ttft:1000,tpot:50` in milliseconds. Raises Refused."""
    from nanovllm.observability.capacity_interface import Slo
    from nanovllm.serving.load import Slo as Limits

    try:
        limits = Limits.parse(text)
    except ValueError as error:
        raise Refused(f"--slo {text}: {error}") from None
    if limits.e2e is not None:
        raise Refused("--slo takes ttft and tpot: how long an answer takes depends on its length.")
    given = {"ttft_p99": limits.ttft, "tpot_p99": limits.tpot}
    if any(value is not None and not value > 0 for value in given.values()):
        raise Refused(f"--slo {text}: limits are above 0 ms.")
    return Slo(**{name: value for name, value in given.items() if value is not None})


def size_of(model: str, dtype: str) -> "ModelSize":
    """A model as a planner sees it. Raises Refused, ModelFolderError."""
    from nanovllm.observability.cards import LLAMA_8B, ModelSize

    if dtype not in BYTES:
        raise Refused(f"--dtype {dtype} is not known: use {', '.join(BYTES)}.")
    if model == LLAMA_8B.name:
        if dtype == "float32":
            raise Refused(f"{model} is known in 16 bits: use --dtype bfloat16.")
        return LLAMA_8B
    bundled = None if model == "bundled" else model
    return ModelSize.of(model, shape_of(bundled), BYTES[dtype])
