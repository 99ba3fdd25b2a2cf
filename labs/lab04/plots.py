"""The traces and the pictures of lab 04's notebook; each picture takes data and returns nothing."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt

from grader.student.notebook import movable
from nanovllm.batching.events import Stepped
from nanovllm.batching.traces import Arrival, bursty, heavy_tailed, steady

if TYPE_CHECKING:
    from nanovllm.batching.simulator import Report, Run

TRACES = {
    "steady": steady(seed=1, count=60, rate=28.0),
    "bursty": bursty(seed=1, count=60, rate=28.0),
    "heavy tail": heavy_tailed(seed=3, count=60, rate=28.0, longest=400),
}
LONG_PROMPT = [Arrival(0.0, 8, 120) for _ in range(8)] + [Arrival(0.1, 1000, 20)]
SIZES = [(20, 40), (90, 6), (12, 12), (40, 8), (10, 30), (120, 5), (16, 9), (30, 50), (8, 8),
         (60, 12), (24, 20), (14, 6)]  # fmt: skip
FEW = [Arrival(0.02 * i, *size) for i, size in enumerate(SIZES)]


def with_deadlines(seed: int) -> list[Arrival]:
    """Eighty requests, most short and a few very long; due in half a second, one or three."""
    draw = Random(seed)
    return [
        Arrival(a.time, a.prompt, a.output, a.priority,
                a.time + draw.choice((0.5, 1.0, 3.0)) + 0.008 * a.output)
        for a in heavy_tailed(seed, 80, 30.0, 400)
    ]  # fmt: skip


def tight_store(model: Any, slots: int, places: int) -> Any:
    """The demo's store that runs out."""
    demo = runpy.run_path(str(Path(__file__).with_name("demo.py")))
    return demo["tight_store"](model, slots, places)


def aging(score: Callable[[str, float], float]) -> None:
    """The score of a low, a normal and a high request of 80 tokens, over the minutes waited."""
    minutes = [m / 4 for m in range(100)]
    _, axis = plt.subplots(figsize=(6.5, 2.8), layout="constrained")
    for name, color in (("high", "C1"), ("normal", "C4"), ("low", "C0")):
        axis.plot(minutes, [score(name, m) for m in minutes], color=color, label=name)
    axis.set(xlabel="minutes waited", ylabel="score")
    axis.legend()
    plt.show()


def bounds(
    waits: Callable[[int, float], float], priorities: Sequence[int], patiences: Sequence[float]
) -> None:
    """Seconds that each priority waits beside a stream of priority 0; dotted: at most so long."""
    _, axis = plt.subplots(figsize=(6.5, 2.8), layout="constrained")
    for patience, color in zip(patiences, ("C0", "C1", "C4"), strict=True):
        seconds = [waits(priority, patience) for priority in priorities]
        axis.plot(priorities, seconds, "o", color=color, label=f"patience {patience:g} s")
        axis.plot(priorities, [(p + 1) * patience for p in priorities], color=color, ls=":", lw=0.9)
    axis.set(xlabel="priority", ylabel="seconds waited", ylim=(0, None))
    axis.legend()
    plt.show()


def controller(lines: Mapping[str, Sequence[int]], change: int) -> None:
    """The limit after each step; at step `change` the machine becomes slower."""
    _, axis = plt.subplots(figsize=(6.5, 2.8), layout="constrained")
    for name, limits in lines.items():
        axis.step(range(len(limits)), limits, where="post", label=name, lw=1.2)
    axis.axvline(change, color="black", lw=0.8, ls=":")
    axis.set(xlabel="step", ylabel="limit, in tokens", ylim=(0, None))
    axis.legend()
    plt.show()


def lives(runs: Mapping[str, Run]) -> None:
    """Each request from its arrival to its last token."""
    figure, axes = plt.subplots(
        1, len(runs), figsize=(10, 3), sharex=True, sharey=True, layout="constrained"
    )
    for axis, (name, run) in zip(axes, runs.items(), strict=True):
        for i, line in enumerate(run.timelines):
            first, last = line.token_times[0], line.token_times[-1]
            axis.barh(i, first - line.arrival, left=line.arrival, color="lightgray")
            axis.barh(i, max(last - first, 0.004), left=first, color="C0")
        axis.set(xlabel="seconds", title=f"{name}: {run.tokens_computed:,} tokens computed")
    axes[0].invert_yaxis()
    axes[0].set_ylabel("request")
    figure.suptitle("gray: until the first token; blue: from the first to the last", fontsize=8)
    plt.show()


def explore(run: Callable[[int], Run], guess: float | None = None) -> None:
    """Move the budget: how long request 0 waits for each token while a long prompt is read."""
    found = {budget: run(budget) for budget in (16, 32, 64, 128, 256, 2048)}

    def draw(axes: Any, budget: int) -> None:
        done = found[budget]
        line = done.timelines[0]
        gaps = [1000 * gap for gap in line.inter_token_latencies]
        axes.plot(line.token_times[1:], gaps, ".-", ms=3, lw=0.8)
        axes.axvline(done.timelines[8].token_times[0], color="C1", lw=0.9)
        if guess is not None:
            axes.axhline(guess, color="gray", lw=0.8, ls=":")
        axes.set(xlabel="seconds", yscale="log", ylim=(4, 300), xlim=(0, 1.4))
        axes.set_title(f"budget {budget}; orange: the long one's first token", fontsize=8)
        if axes.get_subplotspec().is_first_col():
            axes.set_ylabel("ms between tokens")

    movable(draw, budget=list(found))


def knee(measure: Callable[[int], tuple[float, float]]) -> None:
    """Tokens a second, and milliseconds between two tokens, over the size of the batch."""
    sizes = [1, 2, 4, 8, 16, 32, 64, 128]
    found = [measure(size) for size in sizes]
    _, axes = plt.subplots(1, 2, figsize=(9, 2.8), layout="constrained")
    labels = ("tokens a second", "ms between two tokens")
    for i, (axis, label) in enumerate(zip(axes, labels, strict=True)):
        axis.plot(sizes, [pair[i] for pair in found], "o-", color=f"C{i}")
        axis.set(xlabel="requests that run at once", ylabel=label, ylim=(0, None))
        axis.set_xticks([1, 16, 32, 64, 128])
    plt.show()


def policies(reports: Mapping[tuple[str, str], Report]) -> None:
    """Median latency against the longest wait, for each trace and policy."""
    traces = list(dict.fromkeys(trace for trace, _ in reports))
    names = list(dict.fromkeys(name for _, name in reports))
    figure, axes = plt.subplots(1, len(traces), figsize=(11, 3.6), layout="constrained")
    for axis, trace in zip(axes, traces, strict=True):
        for number, name in enumerate(names):
            one = reports[trace, name]
            axis.plot(one.latency_p50, one.longest_wait, "xosD^vP*"[number], mfc="none", ms=8,
                      mew=1.8, color=f"C{number}", label=name)  # fmt: skip
        axis.set(title=trace, xlabel="median latency, s", xlim=(0, None), ylim=(0, None))
    axes[0].set_ylabel("longest wait for a first token, s")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=8)
    plt.show()


def deadlines(met: Mapping[str, Sequence[int]], of: int) -> None:
    """How many deadlines each policy met, summed over the traces."""
    _, axis = plt.subplots(figsize=(7, 2.6), layout="constrained")
    names = sorted(met, key=lambda name: sum(met[name]))
    missed = [of * len(met[name]) - sum(met[name]) for name in names]
    bars = axis.barh(names, missed, color=["C1" if name == "mine" else "C0" for name in names])
    axis.bar_label(bars, padding=3, fontsize=8)
    axis.set(xlabel="deadlines missed")
    plt.show()


def steps(events: Sequence[object], budget: int) -> None:
    """What each step computed, and who waited."""
    found = [event for event in events if isinstance(event, Stepped)]
    ones = [sum(c.length for c in step.chunks if c.length == 1) for step in found]
    more = [sum(c.length for c in step.chunks if c.length > 1) for step in found]
    _, axis = plt.subplots(figsize=(9, 2.6), layout="constrained")
    axis.bar(range(len(found)), ones, color="C0", label="decodes", width=1.0)
    axis.bar(range(len(found)), more, bottom=ones, color="C4", label="chunks", width=1.0)
    axis.plot([step.waiting for step in found], color="black", lw=1, label="requests waiting")
    axis.axhline(budget, color="gray", lw=0.8, ls=":")
    axis.set(xlabel="step", ylabel="tokens (bars), requests (line)")
    axis.legend(fontsize=7)
    plt.show()
