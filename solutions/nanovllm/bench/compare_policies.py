"""Lab 04's simulator as a table: static batches, and every policy, on traces of each shape."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nanovllm.batching.budget import FixedBudget
from nanovllm.batching.policies import POLICIES, URGENT_FIRST, make_policy
from nanovllm.batching.request import Priority
from nanovllm.batching.scheduler import Scheduler
from nanovllm.batching.simulated import CountingStore
from nanovllm.batching.simulator import Report, Run, StepCost, report, simulate, simulate_static
from nanovllm.batching.traces import Arrival, bursty, heavy_tailed, steady
from nanovllm.bench.record import save_figure
from nanovllm.generation.latency import ManualClock, percentile

TRACES = {"steady": steady, "bursty": bursty, "heavy-tailed": heavy_tailed}
STATIC = "static batches"
SEATS, BUDGET = 8, 256


@dataclass(frozen=True)
class PolicyReport(Report):
    """What a run was like, and what it was like for the urgent (priority HIGH)."""

    urgent_ttft_p99: float


def compare(
    count: int, rate: float, seed: int = 0, kv_tokens: int = 1536
) -> dict[str, dict[str, PolicyReport]]:
    """A report for each trace and way of scheduling; no model, so the same on every machine.

    All have 8 seats; kv_tokens: room for K and V, of which static batches need no care.
    """
    found = {}
    for name, make in TRACES.items():
        trace = make(seed, count, rate)
        cost = StepCost()
        runs = {STATIC: simulate_static(trace, SEATS, cost)}
        for policy in [*(policy.name for policy in POLICIES), URGENT_FIRST]:
            runs[policy] = simulate(trace, _scheduler(policy, kv_tokens), cost)
        found[name] = {way: _report(run, trace) for way, run in runs.items()}
    return found


def _report(run: Run, trace: Sequence[Arrival]) -> PolicyReport:
    lines = zip(run.timelines, trace, strict=True)
    urgent = [line.ttft for line, arrival in lines if arrival.priority == Priority.HIGH]
    return PolicyReport(**asdict(report(run)), urgent_ttft_p99=percentile(urgent, 99))


def _scheduler(policy: str, kv_tokens: int) -> Scheduler:
    return Scheduler(
        CountingStore(kv_tokens),
        make_policy(policy),
        FixedBudget(BUDGET),
        max_num_seqs=SEATS,
        clock=ManualClock(),
    )


def as_json(found: dict[str, dict[str, PolicyReport]]) -> dict[str, Any]:
    """The reports as plain data."""
    return {trace: {name: asdict(r) for name, r in runs.items()} for trace, runs in found.items()}


def plot(found: dict[str, dict[str, PolicyReport]], path: Path) -> Path:
    """A row a trace: throughput, waiting for the first token, and fairness of each policy."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = (
        ("throughput", "output tokens/s"),
        ("ttft_p50", "first token after, median, s"),
        ("ttft_p99", "first token after, p99, s"),
        ("urgent_ttft_p99", "the same of the urgent, s"),
        ("fairness", "Jain fairness"),
    )
    figure, axes = plt.subplots(
        len(found), len(columns), figsize=(15, 2.2 * len(found) + 0.6), sharey=True,
        layout="constrained",
    )  # fmt: skip
    for row, (trace, runs) in zip(axes, found.items(), strict=True):
        names = list(runs)[::-1]
        colours = ["#64748b" if name == STATIC else "#d97706" for name in names]
        for axis, (field, _) in zip(row, columns, strict=True):
            values = [getattr(runs[name], field) for name in names]
            axis.barh(names, values, color=colours, height=0.62)
            for place, value in enumerate(values):
                axis.annotate(f" {value:.3g}", (value, place), va="center", fontsize=8)
            axis.set_xlim(0, 1.2 * max(values))
            axis.spines[["top", "right"]].set_visible(False)
            axis.tick_params(labelsize=8)
        row[0].set_title(f"{trace} arrivals", loc="left", fontsize=10, fontweight="bold")
    for axis, (_, label) in zip(axes[-1], columns, strict=True):
        axis.set_xlabel(label, fontsize=9)
    return save_figure(figure, path)
