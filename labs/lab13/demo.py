"""How many replicas three views of one trace ask for, and what better settings change."""

from __future__ import annotations

import random

from rich.console import Console
from rich.table import Table

from nanovllm.observability.capacity import bill, choose_settings, plan_replicas
from nanovllm.observability.capacity_interface import Replica, Slo
from nanovllm.observability.cards import CARDS, LLAMA_8B, step_cost
from nanovllm.observability.generator import generate
from nanovllm.observability.shapes import AZURE_CODE
from nanovllm.observability.trace import Trace, TracedRequest, faster

SEED, MINUTES, FACTOR = 1, 10, 4
SLO = Slo(ttft_p99=1.0, tpot_p99=0.05)
DOLLARS_AN_HOUR = 3.0  # of one H100, an assumption


def poisson(trace: Trace, seed: int) -> list[float]:
    """As many moments in the same time, one independent of another."""
    draw = random.Random(seed)
    return sorted(draw.random() * trace[-1].time for _ in trace)


def views(trace: Trace) -> dict[str, Trace]:
    """The trace, and what is left of it when arrivals and lengths are averaged."""
    count = len(trace)
    prompt = round(sum(r.prompt for r in trace) / count)
    output = round(sum(r.output for r in trace) / count)
    mixed = random.Random(SEED).sample(trace, count)
    return {
        "means, Poisson": [TracedRequest(t, prompt, output) for t in poisson(trace, 1)],
        "lengths, Poisson": [
            TracedRequest(time, r.prompt, r.output)
            for time, r in zip(poisson(trace, 2), mixed, strict=True)
        ],
        "the trace": trace,
    }


def main() -> None:
    """Three plans, then the last one with settings of the trace."""
    console = Console()
    trace = faster(generate(AZURE_CODE, 60 * MINUTES, SEED), FACTOR)
    cost = step_cost(LLAMA_8B, CARDS["h100"])
    settings = choose_settings(trace, LLAMA_8B, CARDS["h100"], SLO)
    usual = Replica(cost, settings.kv_tokens, 256, 2048)
    table = Table(
        title=f"{len(trace):,} requests: {MINUTES} minutes of Azure's code, {FACTOR} times as fast",
        caption=f"Llama 3.1 8B on H100, $ {DOLLARS_AN_HOUR:g} an hour; TTFT, TPOT: p99, to be "
        f"at most {SLO.ttft_p99:g} s and {1000 * SLO.tpot_p99:g} ms; $ / M: a million tokens",
    )
    table.add_column("planned with", no_wrap=True)
    for column in ("by mean", "replicas", "TTFT s", "TPOT ms", "busy", "$ / M"):
        table.add_column(column, justify="right")

    def row(name: str, requests: Trace, replica: Replica) -> None:
        plan = plan_replicas(requests, replica, SLO)
        seen = plan.tried[plan.replicas]
        table.add_row(
            name,
            str(plan.by_mean),
            str(plan.replicas),
            f"{seen.ttft_p99:.2f}",
            f"{1000 * seen.tpot_p99:.1f}",
            f"{seen.busy:.0%}",
            f"{bill(requests, plan.replicas, DOLLARS_AN_HOUR).a_million:.2f}",
        )

    for name, requests in views(trace).items():
        row(name, requests, usual)
    tuned = Replica(
        cost, settings.kv_tokens, settings.max_num_seqs, settings.max_num_batched_tokens
    )
    row(f"trace, steps of {tuned.max_num_batched_tokens}", trace, tuned)
    console.print(table)
    for name in ("max_num_batched_tokens", "max_num_seqs", "block_size"):
        console.print(f"{name}: {settings.reasons[name]}", highlight=False)


if __name__ == "__main__":
    main()
