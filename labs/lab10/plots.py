"""The models and the pictures of lab 10's notebook; each picture takes data, returns nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.patches import Patch

from grader.course.paths import MODELS
from grader.student.notebook import movable, style
from nanovllm.model.config import ModelConfig
from nanovllm.parallel.hardware import CARDS, LINKS, Cluster, Link

if TYPE_CHECKING:
    from nanovllm.parallel.communicator import Communicator
    from nanovllm.parallel.executor_interface import RankRow
    from nanovllm.parallel.overlap import Span
    from nanovllm.parallel.share import RankShare

style()
RANKS = plt.get_cmap("tab10").colors
LLAMA_8B = ModelConfig("llama", 128256, 4096, 32, 32, 8, 128, 14336, 8192)
SMALL = ModelConfig("qwen3", 2048, 256, 4, 8, 4, 32, 768, 1024, qk_norm=True)  # as the bundled one
NAMES = {"nvlink": "NVLink", "pcie5": "PCIe 5", "pcie4": "PCIe 4", "100gbe": "100 GbE"}


def cluster(inside: str | Link) -> Cluster:
    """Nodes of eight H100, with this link inside a node."""
    link = LINKS[inside] if isinstance(inside, str) else inside
    return Cluster(CARDS["h100"], link, LINKS["100gbe"])


def ring(sent: Callable[[int, int, int], int], size: int = 4) -> None:
    """Which ranks' numbers each rank's runs hold, after each step of a ring all-reduce."""
    held = [[{rank} for _ in range(size)] for rank in range(size)]
    halfway: list[list[bool]] = []
    steps = 2 * (size - 1)
    figure, axes = plt.subplots(1, steps + 1, figsize=(12, 2.5), sharey=True, layout="constrained")
    for step, axis in enumerate(axes):
        axis.imshow(
            [[len(run) for run in row] for row in held], cmap="Blues", vmin=0, vmax=size + 2
        )
        for rank, row in enumerate(held):
            for run, summed in enumerate(row):
                text = "".join(map(str, sorted(summed)))
                axis.text(run, rank, text, ha="center", va="center", fontsize=8)
        axis.set(title=f"after {step} steps" if step else "start", xlabel="run")
        axis.set(xticks=range(size), yticks=range(size))
        axis.grid(visible=False)
        if step == size - 1:
            halfway = [[run == set(range(size)) for run in row] for row in held]
        if step == steps:
            break
        runs = [sent(rank, step, size) % size for rank in range(size)]
        moved = [set(held[rank][run]) for rank, run in enumerate(runs)]
        for rank, run in enumerate(runs):
            axis.add_patch(plt.Rectangle((run - 0.5, rank - 0.5), 1, 1, fill=False, ec="C1", lw=2))
            there = held[(rank + 1) % size]
            there[run] = there[run] | moved[rank] if step < size - 1 else moved[rank]
    axes[0].set_ylabel("rank")
    figure.suptitle("orange: sent to the next rank; digits: ranks whose numbers are in the sum")
    plt.show()
    done = sum(run == set(range(size)) for row in held for run in row)
    print(f"{done} of {size * size} runs are whole sums at the end.")
    first = sum(own[rank] for rank, own in enumerate(halfway))
    print(f"{first} of {size} ranks have the sum of their own run after {size - 1} steps.")


def slices(
    query_heads: Callable[[ModelConfig, int, int], range],
    kv_heads: Callable[[ModelConfig, int, int], Sequence[int]],
    share: Callable[[int, int, int], range],
) -> None:
    """Move the number of ranks: a layer's matrices [outputs, inputs], a colour for each rank."""

    def owners(mine: Callable[[int], Sequence[int]], count: int, ranks: int) -> list[list[int]]:
        return [[rank for rank in range(ranks) if part in mine(rank)] for part in range(count)]

    def draw(axis: Any, ranks: int) -> None:
        heads = owners(lambda rank: query_heads(SMALL, ranks, rank), SMALL.num_heads, ranks)
        keys = owners(lambda rank: kv_heads(SMALL, ranks, rank), SMALL.num_kv_heads, ranks)
        wide = owners(lambda rank: share(16, ranks, rank), 16, ranks)
        rows = {"q": heads, "k": keys, "v": keys, "gate": wide, "up": wide}
        cut = {name: (of, True) for name, of in rows.items()} | {
            "o": (heads, False),
            "down": (wide, False),
        }
        for place, name in enumerate(("q", "k", "v", "o", "gate", "up", "down")):
            _matrix(axis, place, *cut[name])
        axis.set_xticks(np.arange(7) + 0.4, ["q", "k", "v", "o", "gate", "up", "down"], rotation=90)
        axis.set(yticks=[], xlim=(-0.1, 6.9), ylim=(1.02, -0.02))
        if ranks > SMALL.num_kv_heads:
            axis.set_xlabel("k, v: two colours side by side are two ranks with the same head")
        axis.grid(visible=False)

    movable(draw, ranks=[1, 2, 4, 8])


def _matrix(axis: Any, left: float, owners: Sequence[Sequence[int]], by_rows: bool) -> None:
    """A matrix in strips, one below the other or side by side; where several have one, all show."""
    width = 1 / len(owners)
    for strip, ranks in enumerate(owners):
        for number, rank in enumerate(ranks):
            place, part = strip * width, 0.8 / len(ranks)
            if by_rows:
                corner, size = (left + number * part, place), (part, width)
            else:
                corner, size = (
                    (left + 0.8 * place, number / len(ranks)),
                    (0.8 * width, 1 / len(ranks)),
                )
            axis.add_patch(plt.Rectangle(corner, *size, color=RANKS[rank], lw=0))


def pipeline(schedule: Callable[[int, int], Sequence[tuple[int, int, int]]]) -> None:
    """Move stages and micro-batches: who computes when, and the share of ticks spent waiting."""

    def draw(axis: Any, micro_batches: int, stages: int) -> None:
        done = schedule(stages, micro_batches)
        ticks = max(tick for tick, _, _ in done) + 1
        for tick, stage, part in done:
            edge = {"edgecolor": "white"} if micro_batches <= 16 else {}
            axis.barh(stage, 1, left=tick, color=RANKS[part % 10], **edge)
            if micro_batches <= 8:
                axis.text(tick + 0.5, stage, part, ha="center", va="center", fontsize=7)
        waiting = 1 - len(done) / (ticks * stages)
        axis.set(xlabel=f"tick; waiting {waiting:.0%}", yticks=range(stages), xlim=(0, ticks))
        axis.set_ylim(stages - 0.5, -0.5)
        axis.grid(visible=False)

    movable(draw, micro_batches=[1, 2, 4, 8, 16, 64], stages=[2, 3, 4, 6, 8])


def traffic(
    predicted: Callable[[int, int], float], counted: Mapping[tuple[int, int], float]
) -> None:
    """Bytes that a rank sends in a step: your formula as lines, your transformer's as dots."""
    _, axis = plt.subplots(figsize=(8, 3.4), layout="constrained")
    for number, ranks in enumerate(sorted({ranks for ranks, _ in counted})):
        tokens = sorted(count for at, count in counted if at == ranks)
        line = [predicted(ranks, count) / 1024 for count in tokens]
        dots = [counted[ranks, count] / 1024 for count in tokens]
        axis.plot(tokens, line, color=f"C{number}", label=f"{ranks} ranks")
        axis.plot(tokens, dots, "o", color=f"C{number}")
    axis.set(xlabel="tokens in the step", ylabel="KiB sent by rank 0", xscale="log", yscale="log")
    axis.set_xticks(tokens, tokens)
    axis.minorticks_off()
    axis.legend(frameon=False, title="line: formula; dots: counted")
    plt.show()


def rows_of(slices: int, stages: int, card: int) -> list[RankRow]:
    """Your executor's ranks on the bundled model, if each has so many bytes of memory."""
    from nanovllm.parallel.executor import Executor
    from nanovllm.parallel.launch import start_threads
    from nanovllm.parallel.share_spec import ShareSpec

    spec = ShareSpec(MODELS / "target", torch.float32, "cpu", slices, stages, 16, 1, 1, blocks=1)

    def load(comm: Communicator) -> RankShare:
        share = spec.share(comm)
        free = card - share.facts.weight_bytes
        share.facts = replace(share.facts, num_blocks=free // share.facts.block_bytes)
        return share

    executor = Executor(start_threads(spec.size, load))
    rows = executor.rows()
    executor.close()
    return rows


def memory(found: Mapping[str, Sequence[RankRow]], card: int) -> None:
    """What each rank has in its memory: weights, K and V, and what nobody can use."""
    figure, axes = plt.subplots(1, len(found), figsize=(12, 2.6), sharey=True, layout="constrained")
    for axis, (name, rows) in zip(axes, found.items(), strict=True):
        places, base = [row.rank for row in rows], np.zeros(len(rows))
        parts = {
            "weights": [row.weight_bytes for row in rows],
            "K and V": [row.kv_bytes for row in rows],
            "unused": [card - row.weight_bytes - row.kv_bytes for row in rows],
        }
        for (label, sizes), color in zip(parts.items(), ("C0", "C2", "0.85"), strict=True):
            axis.bar(places, np.array(sizes) / 1e6, bottom=base, color=color, label=label)
            base += np.array(sizes) / 1e6
        room = sum(row.kv_bytes for row in rows) / len(rows) / 1e6
        axis.set(title=f"{name}: K and V {room:.1f} MB a card", xlabel="rank", xticks=places)
        axis.grid(axis="x", visible=False)
    axes[0].set_ylabel("MB")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    plt.show()


def latency(speedup: Callable[[float, int, int], float], guess: float | None) -> None:
    """Times as fast as one card, over the latency of the link, for one request and for a prompt."""
    latencies = np.logspace(-7, -3, 60)
    _, axes = plt.subplots(1, 2, figsize=(12, 3.6), sharey=True, layout="constrained")
    titles = {1: "one request, a token of it", 4096: "a prompt of 4,096 tokens"}
    for axis, (tokens, title) in zip(axes, titles.items(), strict=True):
        for ranks in (2, 4, 8):
            axis.plot(
                latencies, [speedup(s, ranks, tokens) for s in latencies], label=f"TP {ranks}"
            )
        axis.axhline(1, color="black", lw=1)
        for name, height in {"nvlink": 7.9, "100gbe": 7.3, "gloo": 7.9}.items():
            axis.axvline(LINKS[name].latency, color="0.6", ls=":", lw=1)
            axis.text(
                LINKS[name].latency, height, f" {NAMES.get(name, name)}", fontsize=8, va="top"
            )
        axis.set(title=title, xscale="log", xlabel="latency of a message (s)", ylim=(0, 8))
    if guess is not None and guess > 0:
        axes[0].plot(
            LINKS["nvlink"].latency, guess, "*", ms=12, color="C2", label="your guess, TP 8"
        )
    axes[0].set_ylabel("times as fast as one card")
    axes[0].legend(frameon=False)
    plt.show()


def best(found: Mapping[str, Mapping[str, tuple[int, int, float]]]) -> None:
    """A row for each step, a column for each link: tp x pp of the best layout, and its speed-up."""
    rows, columns = list(found), list(next(iter(found.values())))
    gains = np.array([[found[row][column][2] for column in columns] for row in rows])
    _, axis = plt.subplots(figsize=(8, 0.6 * len(rows) + 1), layout="constrained")
    axis.imshow(gains, cmap="Greens", vmin=1, vmax=9, aspect="auto")
    for (row, column), gain in np.ndenumerate(gains):
        tp, pp, _ = found[rows[row]][columns[column]]
        text = f"TP {tp} x PP {pp}: {gain:.1f} x"
        axis.text(column, row, text, ha="center", va="center", fontsize=9)
    axis.set_xticks(range(len(columns)), [NAMES.get(column, column) for column in columns])
    axis.set_yticks(range(len(rows)), rows)
    axis.grid(visible=False)
    plt.show()


def overlap(lines: Mapping[str, Sequence[Span]], phases: int = 4) -> None:
    """The first phases of steps: what a rank computes above, its messages below.

    Two lines after one another, a step and the same in two halves, are drawn to one scale.
    """
    figure, axes = plt.subplots(len(lines), 1, figsize=(10, 1.3 * len(lines)), layout="constrained")
    for axis, (name, spans) in zip(axes, lines.items(), strict=True):
        shown = [span for span in spans if span.phase < phases]
        for span in shown:
            place = 0 if span.kind == "compute" else 1
            length = 1e6 * (span.end - span.start)
            axis.barh(place, length, left=1e6 * span.start, color=f"C{span.half}", ec="white")
        busy = sum(span.end - span.start for span in spans if span.kind == "compute")
        end = max(span.end for span in spans)
        title = f"{name}: the stage takes {1e3 * end:.2f} ms, {1e3 * (end - busy):.2f} exposed"
        axis.set_title(title, fontsize=9, loc="left")
        axis.set(yticks=[0, 1], yticklabels=["computes", "sends"], ylim=(1.5, -0.5))
        axis.grid(visible=False)
    for pair in zip(axes[::2], axes[1::2], strict=True):
        longer = max(axis.get_xlim()[1] for axis in pair)
        for axis in pair:
            axis.set_xlim(0, longer)
    axes[-1].set_xlabel("microseconds")
    colours = {"C0": "first half, or all", "C1": "second half"}
    patches = [Patch(color=colour, label=label) for colour, label in colours.items()]
    figure.legend(handles=patches, loc="outside lower right", ncols=2, frameon=False)
    plt.show()
