"""What one engine takes, by lab 13's simulation and by itself: the same traces.

`python -m benchmarks.replay_trace --out FOLDER`. Requests with the lengths of a published trace, a
twelfth and a quarter of them, arrive faster and faster. The engine computes all of them; its clock
counts the seconds of its processor, one thread, and jumps over idle time, so that other load on the
machine is not taken for the engine's. What steps cost is fitted to replays of other traces, made in
turns with these. The capacity is the rate up to which 99 of 100 requests keep the objective,
interpolated between the rates that were tried, for some objectives.
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
import torch
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
from nanovllm.observability.capacity_interface import Replica
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


class ProcessorClock:
    """Seconds of this process's processor, and those that were jumped over."""

    def __init__(self) -> None:
        self.jumped = 0.0

    def __call__(self) -> float:
        return time.process_time() + self.jumped


class RealEngine:
    """An engine that computes, beside the simulated one."""

    def __init__(self, model: str, rows: int, budget: int) -> None:
        folder = model_folder(model)
        self.llm = LLM(
            str(folder),
            tokenizer=str(model_folder("bundled")),  # a benchmark's model has none
            max_num_seqs=rows,
            max_num_batched_tokens=budget,
        )
        self.engine: Engine = self.llm.runner.engine
        settle(self.engine)
        self.clock = self.engine.clock = ProcessorClock()
        self.size = load_config(folder).vocab_size
        self.draws = random.Random(1)  # no prompt begins as one of another replay

    def replay(self, trace: Trace) -> Run:
        """The trace; random tokens, greedy, no end before the trace's length."""
        engine = self.engine
        prompts = [self.draws.choices(range(10, self.size), k=r.prompt) for r in trace]
        events: list[EngineEvent] = []
        ids: dict[int, float] = {}
        began, number = self.clock(), 0
        while number < len(trace) or engine.has_unfinished:
            if not engine.has_unfinished:
                self.clock.jumped += max(0.0, began + trace[number].time - self.clock())
            now = self.clock() - began
            while number < len(trace) and trace[number].time <= now:
                params = SamplingParams(
                    temperature=0, max_tokens=trace[number].output, ignore_eos=True
                )
                ids[engine.add_request(prompts[number], params)] = began + trace[number].time
                number += 1
            events += engine.step()
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


def show(
    found: dict[float, dict[str, Any]], objectives: Sequence[float]
) -> dict[float, dict[str, float]]:
    """Percentiles at each rate, and what both take for each objective."""
    table = tables.plain(
        "p99, seconds", "requests a second", "TTFT, engine", "simulated", "TPOT, engine",
        "simulated",
    )  # fmt: skip
    reached: dict[str, list[float]] = {"engine": [], "simulated": []}
    for rate, both in found.items():
        middle = {
            (key, name): median(run[key] for run in both[name])
            for key in ("ttft_p99", "tpot_p99")
            for name in reached
        }
        table.add_row(f"{rate:g}", *(f"{seconds:.3f}" for seconds in middle.values()))
        for name, p99s in reached.items():
            p99s.append(middle["ttft_p99", name])
    takes: dict[float, dict[str, float]] = {}
    capacities = tables.plain(
        "Requests a second", "TTFT p99, seconds", "engine", "simulated", "ratio"
    )
    for most in objectives:
        takes[most] = {n: capacity(list(found), p99s, most) for n, p99s in reached.items()}
        ratio = takes[most]["simulated"] / takes[most]["engine"]
        numbers = (*takes[most].values(), ratio)
        capacities.add_row(f"{most:g}", *(f"{number:.2f}" for number in numbers))
    for each in (table, capacities):
        Console().print(each)
    return takes


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--rates", type=float, nargs="*", default=[20, 25, 30, 35, 40, 50])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--budget", type=int, default=256)
    parser.add_argument(
        "--ttft",
        type=float,
        nargs="*",
        default=[0.3, 0.5, 1.0, 2.0],
        help="Objectives, p99, seconds.",
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    real = RealEngine(given.model, given.rows, given.budget)
    rates, rounds = given.rates, range(given.rounds)
    others: list[EngineEvent] = []
    runs: dict[float, list[Run]] = {rate: [] for rate in rates}

    def trace_of(rate: float, seed: int) -> Trace:
        return generate(SHAPE, given.seconds, seed=seed, rate=rate)

    real.replay(trace_of(median(rates), 999))
    for seed in rounds:
        for rate in rates:
            others += real.replay(trace_of(rate, 100 + seed)).events
            runs[rate].append(real.replay(trace_of(rate, seed)))
            print(f"  round {seed + 1}, {rate:g} a second", file=sys.stderr, flush=True)
    cost = fitted(others)
    print(f"a step: {cost}", file=sys.stderr)
    replica = Replica(cost, real.engine.store.total_tokens, given.rows, given.budget)
    found: dict[float, dict[str, Any]] = {
        rate: {
            "engine": [told(run) for run in runs[rate]],
            "simulated": [told(run_one(trace_of(rate, seed), replica)) for seed in rounds],
        }
        for rate in rates
    }
    takes = show(found, given.ttft)
    settings = {
        "model": given.model, "seconds": given.seconds, "rounds": given.rounds,
        "max_num_seqs": given.rows, "max_num_batched_tokens": given.budget,
    }  # fmt: skip
    results = {"cost": asdict(cost), "rates": found, "capacity": takes}
    save(record("replay-trace", settings, results), given.out / "replay-trace.json")


if __name__ == "__main__":
    main()
