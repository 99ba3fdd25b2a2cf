"""What one engine takes, by lab 13's simulation and by itself: one trace, in real time.

`python -m benchmarks.replay_trace --out FOLDER`. What steps cost is measured first, on another
trace. Then requests with the lengths of a published trace, a twelfth and a quarter of them, arrive
faster and faster, at the engine and in the simulation in turns. The capacity is the rate up to
which 99 of 100 requests keep the objective, interpolated between the rates that were tried.
"""

import argparse
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, cast

import numpy as np
from rich.console import Console

from nanovllm import LLM
from nanovllm.batching.engine import Engine
from nanovllm.batching.events import EngineEvent, Stepped
from nanovllm.batching.simulator import Run, StepCost
from nanovllm.bench import tables
from nanovllm.bench.models import model_folder
from nanovllm.bench.record import record, save
from nanovllm.bench.stages import settle
from nanovllm.generation.events import Event
from nanovllm.generation.latency import percentile, timelines
from nanovllm.generation.params import SamplingParams
from nanovllm.model.loader import load_config
from nanovllm.observability.capacity import run_one
from nanovllm.observability.capacity_interface import Replica, Slo
from nanovllm.observability.generator import generate
from nanovllm.observability.shapes import AZURE_CONVERSATION
from nanovllm.observability.trace import Trace

LONGEST = 350, 150  # tokens of a prompt and of an answer
SHAPE = replace(
    AZURE_CONVERSATION,
    prompts=tuple(min(max(1, n // 12), LONGEST[0]) for n in AZURE_CONVERSATION.prompts),
    outputs=tuple(min(max(2, n // 4), LONGEST[1]) for n in AZURE_CONVERSATION.outputs),
    cycle_seconds=60.0,
)


class RealEngine:
    """An engine that computes, beside the simulated one."""

    def __init__(self, model: str, rows: int, budget: int) -> None:
        folder = model_folder(model)
        self.llm = LLM(
            str(folder),
            tokenizer=str(model_folder("bundled")),  # a benchmark's model has none
            max_num_seqs=rows,
            max_num_batched_tokens=budget,
            enable_prefix_caching=False,
        )
        self.engine: Engine = self.llm.runner.engine
        settle(self.engine)
        self.size = load_config(folder).vocab_size

    def replay(self, trace: Trace) -> Run:
        """The trace in real time; random tokens, greedy, no end before the trace's length."""
        draws, engine = random.Random(1), self.engine
        prompts = [draws.choices(range(10, self.size), k=r.prompt) for r in trace]
        events: list[EngineEvent] = []
        ids: dict[int, float] = {}
        began, number = time.perf_counter(), 0
        while number < len(trace) or engine.has_unfinished:
            now = time.perf_counter() - began
            while number < len(trace) and trace[number].time <= now:
                params = SamplingParams(
                    temperature=0, max_tokens=trace[number].output, ignore_eos=True
                )
                ids[engine.add_request(prompts[number], params)] = began + trace[number].time
                number += 1
            if engine.has_unfinished:
                events += engine.step()
            elif number < len(trace):
                time.sleep(max(0.0, began + trace[number].time - time.perf_counter()))
        return Run(events, ids, 0)


def fitted(events: Sequence[EngineEvent]) -> StepCost:
    """Base, token and place by least squares over steps, none below zero."""
    steps = [event for event in events if isinstance(event, Stepped) and event.chunks]
    rows = [
        (1, sum(c.length for c in step.chunks), sum(c.start + c.length for c in step.chunks))
        for step in steps
    ]
    seconds = [step.time - step.started for step in steps]
    found, *_ = np.linalg.lstsq(np.array(rows, float), np.array(seconds), rcond=None)
    return StepCost(*(max(0.0, float(one)) for one in found))


def told(run: Run) -> dict[str, float]:
    """Percentiles of a run."""
    lines = timelines(cast(list[Event], run.events), run.arrivals).values()
    return {
        "ttft_p99": percentile([line.ttft for line in lines], 99),
        "ttft_p50": percentile([line.ttft for line in lines], 50),
        "tpot_p99": percentile([line.tpot for line in lines if line.tpot is not None], 99),
    }


def capacity(rates: Sequence[float], p99s: Sequence[float], most: float) -> float:
    """The rate at which p99 reaches `most`, between the two that surround it."""
    for (low, below), (high, above) in pairwise(zip(rates, p99s, strict=True)):
        if below <= most < above:
            share = np.log(most / below) / np.log(above / below)
            return low + float(share) * (high - low)
    raise SystemExit(f"no pair of rates surrounds {most} s: {dict(zip(rates, p99s, strict=True))}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--rates", type=float, nargs="*", default=[8, 10, 12, 14, 16])
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--budget", type=int, default=256)
    parser.add_argument("--ttft", type=float, default=0.3, help="Objective, p99, seconds.")
    given = parser.parse_args()
    real = RealEngine(given.model, given.rows, given.budget)
    middle = median(given.rates)
    real.replay(generate(SHAPE, given.seconds / 4, seed=7, rate=middle))
    cost = fitted(real.replay(generate(SHAPE, given.seconds, seed=8, rate=middle)).events)
    print(f"a step: {cost}", file=sys.stderr)
    places = real.engine.store.total_tokens
    replica = Replica(cost, places, given.rows, given.budget)
    found: dict[float, dict[str, Any]] = {}
    for rate in given.rates:
        count = given.seconds * rate
        trace = generate(SHAPE, given.seconds, seed=0, rate=rate)
        runs = [told(real.replay(trace)) for _ in range(given.rounds)]
        found[rate] = {"engine": runs, "simulated": told(run_one(trace, replica))}
        print(f"  {rate:g} a second, {count:.0f} requests", file=sys.stderr, flush=True)
    table = tables.plain(
        "p99, seconds", "requests a second", "TTFT, engine", "simulated", "TPOT, engine",
        "simulated",
    )  # fmt: skip
    reached: dict[str, list[float]] = {"engine": [], "simulated": []}
    for rate, both in found.items():
        ours = {key: median(run[key] for run in both["engine"]) for key in both["simulated"]}
        row = [
            f"{each[key]:.3f}"
            for key in ("ttft_p99", "tpot_p99")
            for each in (ours, both["simulated"])
        ]
        table.add_row(f"{rate:g}", *row)
        reached["engine"].append(ours["ttft_p99"])
        reached["simulated"].append(both["simulated"]["ttft_p99"])
    Console().print(table)
    slo = Slo(given.ttft)
    takes = {name: capacity(list(found), p99s, slo.ttft_p99) for name, p99s in reached.items()}
    ratio = takes["simulated"] / takes["engine"]
    print(f"requests a second within {given.ttft:g} s: {takes}, simulated / engine {ratio:.3f}")
    settings = {
        "model": given.model, "seconds": given.seconds, "rounds": given.rounds,
        "max_num_seqs": given.rows, "max_num_batched_tokens": given.budget, "ttft_p99": given.ttft,
    }  # fmt: skip
    results = {"cost": asdict(cost), "rates": found, "capacity": takes, "ratio": ratio}
    save(record("replay-trace", settings, results), given.out / "replay-trace.json")


if __name__ == "__main__":
    main()
