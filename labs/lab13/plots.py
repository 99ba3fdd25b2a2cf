"""The traces and the pictures of lab 13's notebook; each picture takes data, returns nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np

from grader.student.notebook import movable, style
from nanovllm.observability.capacity_interface import Replica
from nanovllm.observability.cards import CARDS, LLAMA_8B, step_cost
from nanovllm.observability.shapes import AZURE_CODE, AZURE_CONVERSATION, MOONCAKE

if TYPE_CHECKING:
    from nanovllm.observability.span import Span
    from nanovllm.observability.trace import Trace, TracedRequest

style()
NAMES = {
    "code": AZURE_CODE,
    "conversation": AZURE_CONVERSATION,
    "Mooncake": MOONCAKE,
}
REPLICA = Replica(step_cost(LLAMA_8B, CARDS["h100"]), 426_784, 256, 2048)
SPAN_COLOURS = {"queue": "0.7", "prefill": "C0", "decode": "C2", "preempted": "C1"}


@cache
def traces() -> dict[str, list[TracedRequest]]:
    """Half an hour of each shape, by your generator."""
    from nanovllm.observability.generator import generate

    return {name: generate(shape, 1800.0, 1) for name, shape in NAMES.items()}


@cache
def code() -> list[TracedRequest]:
    """The demo's trace: ten minutes of Azure's code, four times as fast."""
    from nanovllm.observability.generator import generate
    from nanovllm.observability.trace import faster

    return faster(generate(AZURE_CODE, 600.0, 1), 4)


def arrivals(times: Mapping[str, Sequence[float]], seconds: float = 1800.0) -> None:
    """Move the window: requests a second in each window, half an hour of each trace."""

    def draw(axis: Any, window: int) -> None:
        for number, (name, line) in enumerate(times.items()):
            found = np.bincount((np.array(line) // window).astype(int)) / window
            edges = np.arange(len(found)) * window / 60
            peak = found.max() / found.mean()
            axis.step(edges, found, where="post", color=f"C{number}", lw=1,
                      label=f"{name}: peak {peak:.1f} times the mean")  # fmt: skip
        axis.set(xlabel="minutes", ylabel="requests a second", xlim=(0, seconds / 60))
        axis.legend(frameon=False, loc="upper right")

    movable(draw, window=[1, 5, 20, 60, 180])


def tails(points: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    """Share of requests that are longer, and a lognormal with the same p50 and p90 (dashed)."""
    _, axis = plt.subplots(figsize=(8, 3.6), layout="constrained")
    for number, (name, line) in enumerate(points.items()):
        values, shares = np.array(line).T
        axis.plot(values[shares > 0], shares[shares > 0], color=f"C{number}", label=name)
        middle, high = (values[np.searchsorted(-shares, -q)] for q in (0.5, 0.1))
        spread = np.log(high / middle) / 1.2816
        at = np.geomspace(middle / 10, values.max() * 4, 200)
        from scipy.stats import norm

        axis.plot(at, norm.sf(np.log(at / middle) / spread), color=f"C{number}", ls="--", lw=1)
    axis.set(xscale="log", yscale="log", ylim=(1e-4, 1.2), xlabel="tokens")
    axis.set_ylabel("share that is longer")
    axis.legend(frameon=False, title="dashed: lognormal through p50 and p90")
    plt.show()


def dispersion(curves: Mapping[str, Callable[[float], float]], windows: Sequence[float]) -> None:
    """Variance over mean of the counts, by the length of the window."""
    _, axis = plt.subplots(figsize=(8, 3.4), layout="constrained")
    for number, (name, curve) in enumerate(curves.items()):
        axis.plot(windows, [curve(w) for w in windows], "o-", color=f"C{number}", label=name, ms=4)
    axis.axhline(1, color="black", lw=1)
    axis.set(xscale="log", yscale="log", xlabel="length of the window (s)")
    axis.set_ylabel("index of dispersion")
    axis.legend(frameon=False)
    plt.show()


def cache(curves: Mapping[str, Mapping[int, float]], endless: float) -> None:
    """Share of the blocks that hit, by the number of blocks kept."""
    _, axis = plt.subplots(figsize=(8, 3.2), layout="constrained")
    for number, (name, line) in enumerate(curves.items()):
        axis.plot(list(line), [100 * share for share in line.values()], "o-",
                  color=f"C{number}", label=name)  # fmt: skip
    axis.axhline(100 * endless, color="black", lw=1, ls=":")
    axis.text(min(next(iter(curves.values()))), 100 * endless, "endless memory", va="bottom")
    axis.set(xscale="log", xlabel="blocks kept", ylabel="% of blocks that hit")
    axis.set_ylim(0, 100 * endless * 1.25)
    axis.legend(frameon=False)
    plt.show()


def replicas(
    found: Mapping[str, Mapping[int, float]], limit: float, guess: float | None = None
) -> None:
    """TTFT p99 by number of replicas; below the line the objective is kept."""
    _, axis = plt.subplots(figsize=(8, 3.6), layout="constrained")
    for number, (name, line) in enumerate(found.items()):
        axis.plot(list(line), list(line.values()), "o-", color=f"C{number}", label=name)
    axis.axhline(limit, color="black", lw=1)
    axis.text(10, limit, "objective", va="bottom", ha="right")
    if guess is not None and guess > 0:
        axis.axvline(guess, color="C4", ls="--", label="your guess")
    numbers = sorted({n for line in found.values() for n in line})
    axis.set(yscale="log", xlabel="replicas", ylabel="TTFT p99 (s)", xticks=numbers)
    axis.legend(frameon=False)
    plt.show()


def burst(trace: Trace, replica: Replica = REPLICA) -> list[Span]:
    """The spans of a trace on one replica of lab 04's simulator, by your builder."""
    from nanovllm.batching.budget import FixedBudget
    from nanovllm.batching.events import Queued
    from nanovllm.batching.scheduler import Scheduler
    from nanovllm.batching.simulated import CountingStore
    from nanovllm.batching.simulator import simulate
    from nanovllm.generation.events import Completion, Finished, TokenGenerated
    from nanovllm.generation.latency import ManualClock
    from nanovllm.observability.span import RequestInfo
    from nanovllm.observability.spans import SpanBuilder
    from nanovllm.observability.trace import arrivals as of

    room, budget = CountingStore(replica.kv_tokens), FixedBudget(replica.max_num_batched_tokens)
    most, clock = replica.max_num_seqs, ManualClock()
    scheduler = Scheduler(room, None, budget, max_num_seqs=most, clock=clock)
    given = of(trace)
    builder, draw = SpanBuilder(lambda: draw.getrandbits(63) | 1), random.Random(0)
    left, spans = {}, []
    for event in simulate(given, scheduler, replica.cost).events:
        kind = type(event)
        if kind is Queued:
            number = event.request_id
            builder.begin(RequestInfo(number, "tiny", given[number].prompt))
            left[number] = given[number].output
        spans += builder.on(event)
        if kind is TokenGenerated:
            left[event.request_id] -= 1
            if left[event.request_id] == 0:
                done = Completion(0, (), "", "length")
                spans += builder.on(Finished(event.request_id, 0, done, event.time))
    return spans


def waterfall(spans: Sequence[Span], most: int = 14) -> None:
    """A row for each request, by arrival: what it does when."""
    roots = sorted((s for s in spans if s.kind == "server"), key=lambda s: s.start)[:most]
    _, axis = plt.subplots(figsize=(10, 0.24 * len(roots) + 1), layout="constrained")
    first = roots[0].start
    for row, root in enumerate(roots):
        for span in spans:
            if span.parent_id == root.span_id:
                axis.barh(row, span.end - span.start, left=span.start - first,
                          color=SPAN_COLOURS[span.name])  # fmt: skip
    axis.set(yticks=range(len(roots)), xlabel="seconds", ylim=(len(roots) - 0.5, -0.5))
    axis.set_yticklabels(
        [f"{root.attributes['gen_ai.usage.input_tokens']:,} in" for root in roots], fontsize=7
    )
    axis.grid(axis="y", visible=False)
    for name, colour in SPAN_COLOURS.items():
        axis.barh(0, 0, color=colour, label=name)
    axis.legend(frameon=False, ncols=4, loc="upper right")
    plt.show()


def outage(minutes: int = 300, start: int = 60, end: int = 90, bad: float = 0.3) -> list[float]:
    """The share of errors in each minute: half an hour of trouble, and a few errors always."""
    draw = random.Random(3)
    return [
        (bad if start <= minute < end else 0.001) * draw.uniform(0.8, 1.2)
        for minute in range(minutes)
    ]


def alarm(fires: Callable[[Sequence[float], int, int, int, float], bool]) -> None:
    """Move the factor: when one window alerts, and when two, through an outage of 30 minutes."""
    shares = outage()

    def draw(axis: Any, factor: int) -> None:
        limit = factor * 0.01
        axis.plot(shares, color="0.5", lw=1, label="share of errors")
        for row, (name, short) in enumerate({"1 h": 60, "1 h and 5 min": 5}.items()):
            on = [m for m in range(60, len(shares)) if fires(shares, m, 60, short, limit)]
            axis.plot(on, [-0.04 - 0.05 * row] * len(on), "s", ms=4, color=f"C{row}",
                      label=f"{name}: {len(on)} minutes of alert")  # fmt: skip
        axis.set(xlabel="minute", ylim=(-0.15, 0.4), yticks=[0, 0.1, 0.2, 0.3])
        axis.legend(frameon=False, loc="upper right")

    movable(draw, factor=[2, 6, 10, 14])


def night(recording: Sequence[Any], finding: Any) -> None:
    """An incident's recording, and the second that you name."""
    figure, axes = plt.subplots(4, 1, figsize=(9, 4.4), sharex=True, layout="constrained")
    lines = {
        "tokens": ("tokens a second",),
        "running": ("running",),
        "waiting": ("waiting",),
        "healthy": ("health check",),
    }
    for axis, (name, (label,)) in zip(axes, lines.items(), strict=True):
        axis.step(range(len(recording)), [float(getattr(s, name)) for s in recording], where="post")
        axis.set_ylabel(label, rotation=0, ha="right", va="center")
        if finding.second is not None:
            axis.axvline(finding.second, color="C1")
    axes[-1].set(xlabel="second", yticks=[0, 1], yticklabels=["bad", "ok"], ylim=(-0.1, 1.2))
    figure.suptitle(f"{finding.cause}, first seen in second {finding.second}", color="C1")
    plt.show()


def midnight() -> list[Any]:
    """Two minutes of a server that hangs after 70 seconds and goes on to say that it is well."""
    from nanovllm.observability.recording import Second

    draw, found = random.Random(12), []
    waiting = 0
    for second in range(120):
        stuck, came = second >= 70, draw.randint(1, 5)
        waiting = waiting + came if stuck else draw.randint(0, 2)
        busy = min(8, 5 + draw.randint(0, 3))
        found.append(
            Second(came, 0 if stuck else came, 0, 0 if stuck else 12 * busy, 8 if stuck else busy,
                   waiting, 0, 0.2 if stuck else draw.uniform(0.4, 0.6))
        )  # fmt: skip
    return found
