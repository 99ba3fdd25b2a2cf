"""What the measurements look like in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from rich import box
from rich.markup import escape
from rich.table import Table

from nanovllm.bench.contestants import OURS
from nanovllm.bench.forced import Forced
from nanovllm.bench.progression import StageResult
from nanovllm.bench.rounds import Rounds

if TYPE_CHECKING:  # of labs that may not be here
    from nanovllm.bench.compare_policies import PolicyReport
    from nanovllm.bench.guessing_rows import Row
    from nanovllm.bench.memory import Usage
    from nanovllm.bench.quantized import Row as FormatRow


SHORT = {"of products": "flops", "of memory": "bytes"}  # what limits.py measures


def plain(title: str, *columns: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", padding=(0, 1, 0, 0))
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place else "left", no_wrap=not place)
    return table


def contest(
    title: str,
    figures: Mapping[str, tuple[Rounds, float]],
    ready: Mapping,
    shares: Mapping[str, Mapping[str, float]],
) -> Table:
    """A row a contestant: each figure's median and how many times better ours is; its start.

    Below, where ours guesses, the tokens that a guessed run brings.

    start: seconds from the birth of its process to its first token, of ours those of `import torch`
    beside it. figures: by column, the rounds and the factor to show them in. shares: by column, of
    what torch's product and a sum over memory reached in the same run.
    """
    table = plain(title, "engine")
    if shares:
        table.caption = "flops, bytes: of what torch's products, sums reach here in the same run"
    for label in figures:
        table.add_column(label, justify="right", no_wrap=True)
        if len(ready) > 1:
            table.add_column("ours", justify="right", no_wrap=True)
    for label in (*(SHORT[label] for label in shares), "start", "MB"):
        table.add_column(label, justify="right", no_wrap=True)
    summaries = {label: rounds.summary() for label, (rounds, _) in figures.items()}
    for name, one in ready.items():
        row = [f"[bold]{name}[/]" if name == OURS else name]
        for label, (_, factor) in figures.items():
            its: dict[str, Any] = summaries[label][name]
            row.append(_short(its["median"] * factor))
            if len(ready) > 1:
                row.append(_times(its["reference_is_better_by"]))
        row += (f"{its[name]:.0%}" for its in shares.values())
        told = one.process.ask("memory")
        torch = one.facts.get("torch_import_seconds")
        start = f"{one.first_token_seconds:.1f}" + (f" ({torch:.1f})" if torch else "")
        table.add_row(*row, start, f"{told['peak_bytes'] / 1e6:,.0f}")
        if "mean_acceptance_length" in told:
            length = f"{name}: acceptance length {told['mean_acceptance_length']:.2f}"
            table.caption = f"{table.caption}; {length}" if shares else length
    return table


def forced(found: Mapping[str, Forced]) -> Table:
    """A row a contestant: how often its token is the float32 argmax behind its own past."""
    table = plain("Tokens judged in float32, each behind its own past", "engine", "tokens")
    table.add_column("are the argmax", justify="right")
    table.add_column("largest gap, logits", justify="right")
    for name, one in found.items():
        row = f"{one.tokens:,}", f"{one.argmax_share:.1%}", f"{one.largest_gap:.3f}"
        table.add_row(name, *row)
    return table


def _times(ratio: float) -> str:
    colour = "green" if ratio >= 1 else "red"
    return f"[{colour}]{ratio:.2f} x[/]"


def stages(title: str, results: list[StageResult]) -> Table:
    """The curve: each lab's stage, whose code it ran, and how much faster it is."""
    table = plain(title, "stage", "lab", "whose code", "tokens/s", "to the first", "answers")
    first = next((r.rate for r in results if r.rate), None)
    for result in results:
        whose = "[bold green]yours[/]" if result.mine else "reference"
        if result.lab == "peer":
            whose = "theirs"
        elif result.yours:
            whose += f" (yours: {', '.join(result.yours)})"
        if result.rate is None:
            table.add_row(result.name, result.lab, whose, f"[yellow]{result.why_not}[/]", "", "")
            continue
        same = "[green]same[/]" if result.same_answers else "[red]differ[/]"
        faster = f"{result.rate / (first or result.rate):.1f} x"
        table.add_row(result.name, result.lab, whose, f"{result.rate:,.0f}", faster, same)
    return table


def memory(title: str, found: Mapping[str, Usage]) -> Table:
    """Slots against blocks; in use: the share of the memory that holds a token."""
    table = plain(
        title, "allocation", "at once", "internal waste", "external waste", "in use", "steps",
    )  # fmt: skip
    for name, usage in found.items():
        table.add_row(
            name, f"{usage.sequences:.1f}", f"{usage.internal_waste:.1%}",
            f"{usage.external_waste:.1%}", f"{usage.stored:.1%}", f"{usage.steps:,}",
        )  # fmt: skip
    return table


def policies(found: Mapping[str, Mapping[str, PolicyReport]]) -> list[Table]:
    """A table a trace, a row a policy; times in seconds; the urgent's TTFT is their p99."""
    made = []
    for trace, runs in found.items():
        table = plain(
            f"{trace.capitalize()} arrivals, simulated", "policy", "tokens/s", "TTFT p50", "p99",
            "urgent", "end p50", "p99", "fairness", "preempted",
        )  # fmt: skip
        for name, run in runs.items():
            table.add_row(
                name, f"{run.throughput:.0f}", f"{run.ttft_p50:.2f}", f"{run.ttft_p99:.2f}",
                f"{run.urgent_ttft_p99:.2f}", f"{run.latency_p50:.2f}", f"{run.latency_p99:.2f}",
                f"{run.fairness:.2f}", f"{run.preemptions}",
            )  # fmt: skip
        made.append(table)
    return made


def guessing(title: str, rows: Sequence[Row]) -> list[Table]:
    """A table a batch, a row a way to guess: what it brings and costs, how near it is to its bound.

    tokens and drafts (forwards of the draft model): a step. HF: transformers.
    """
    made = []
    for batch in sorted({row.batch for row in rows}):
        table = plain(f"{title}, batch {batch}", "guesses", "tokens", "drafts", "v", "c", "bound")
        for column in ("faster", "reached", "wall"):
            table.add_column(column, justify="right")
        for row in rows:
            if row.batch != batch:
                continue
            bound, reached = row.bound, ""
            if bound is not None:
                reached = f"{row.faster / bound:.0%}"
            table.add_row(
                f"{row.kind}, {row.way}", f"{row.tokens:.2f}", f"{row.forwards:.2f}",
                "" if row.verify is None else f"{row.verify:.2f}",
                f"{row.draft:.3f}" if row.forwards else "",
                "" if bound is None else f"{bound:.2f}",
                _times(row.faster), reached, f"{row.faster_wall:.2f}",
            )  # fmt: skip
        made.append(table)
    return made


def quantized(title: str, rows: Sequence[FormatRow]) -> list[Table]:
    """A table a number of requests, a row a format: how fast its steps are, and what runs them."""
    made = []
    for batch in sorted({row.batch for row in rows}):
        table = plain(f"{title}, {batch} at once", "weights", "tokens/s", "ms a step", "faster")
        for column in ("processor", "of memory", "step"):
            table.add_column(column, justify="right")
        for row in rows:
            if row.batch == batch:
                table.add_row(
                    row.format, f"{median(row.rates):,.0f}", f"{1e3 * median(row.wall):.1f}",
                    _times(row.faster), f"{row.faster_cpu:.2f}", f"{row.of_memory:.0%}", row.step,
                )  # fmt: skip
        made.append(table)
    return made


def serving(title: str, found: Mapping[str, Any]) -> list[Table]:
    """What came out of a server, and how long its users waited, in milliseconds."""
    rates = plain(title, "", "a second", "in all")
    rates.add_row("requests", _short(found["requests_per_second"]), f"{found['answered']:,}")
    if found["goodput"] is not None:
        limits = [f"{name} {1e3 * s:g} ms" for name, s in found["slo"].items() if s is not None]
        rates.add_row(
            f"[bold]goodput[/] ({', '.join(limits)})", f"[bold]{_short(found['goodput'])}[/]",
            f"{found['good']:,} of {found['requests']:,}",
        )  # fmt: skip
    rates.add_row(
        "output tokens", _short(found["output_tokens_per_second"]), f"{found['output_tokens']:,}"
    )
    total = found["prompt_tokens"] + found["output_tokens"]
    rates.add_row("prompt and output", _short(found["total_tokens_per_second"]), f"{total:,}")
    if found["mean_acceptance_length"] is not None:
        rates.add_row("acceptance length", "", f"{found['mean_acceptance_length']:.2f}")
    rates.add_row("time", "", f"{found['seconds']:.1f} s")
    for error, count in found["errors"].items():
        rates.add_row(f"[red]failed[/]: {escape(error)}", "", f"[red]{count:,}[/]")
    names = ("mean", "p50", "p90", "p95", "p99", "p99.9")
    waits = plain("milliseconds", "", *names)
    for row in ("ttft", "tpot", "itl", "e2e"):
        of = found[row]
        waits.add_row(row.upper(), *(_short(1e3 * of[name]) if of else "-" for name in names))
    return [rates, waits]


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
