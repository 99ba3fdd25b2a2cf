"""The requests and the pictures of lab 05's notebook; each picture takes data, returns nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Patch

from grader.course.paths import MODELS
from grader.student.notebook import movable, style
from nanovllm.batching.plan import Chunk, Plan
from nanovllm.batching.request import Request
from nanovllm.batching.simulated import SimulatedSequence
from nanovllm.batching.traces import Arrival, heavy_tailed
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.sequence import Sequence as Tokens

if TYPE_CHECKING:
    from nanovllm.paging.occupancy import Occupancy

style()
TRACE: list[Arrival] = heavy_tailed(seed=3, count=200, rate=30.0, longest=400)
LONGEST = 256  # reserved for each answer, by who wants one piece
SHARED = "Mia's code is 7342. Tom's code is 1589. Ben has a red ball. "
ASKED = ("Mia's code is", "Tom's code is", "Ben has a red", "Once upon a time")
FREE, TOGETHER, KEPT = -1, -2, -3  # what a block can be but one request's


def running(runs: Mapping[str, Occupancy]) -> None:
    """Requests at once, and how much of what is reserved holds a token, over the trace."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.2), layout="constrained")
    for name, run in runs.items():
        left.plot([moment.running for moment in run.moments], lw=1.2)
        shares = [100 * moment.stored / moment.reserved for moment in run.moments]
        label = f"{name}: {run.utilisation:.0%} over the run"
        right.plot(shares, lw=1.2, label=label)
    left.set(xlabel="step", ylabel="requests at once", ylim=(0, None))
    left.set_title(f"{len(TRACE)} requests in 8,192 places: blocks are done first", fontsize=9)
    right.set(xlabel="step", ylabel="% of the reserved places", ylim=(0, 105))
    right.set_title("places that hold a token", fontsize=9)
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    plt.show()


def reservations(allocators: Mapping[str, Callable[[int], Any]]) -> None:
    """What each allocator reserves for one request, over its length: the empty part is red."""
    prompt, answer = 40, 30
    _, axis = plt.subplots(figsize=(9, 1.9), layout="constrained")
    for row, (name, make) in enumerate(allocators.items()):
        memory = make(1024)
        whole = "block" in name
        memory.allocate("r", prompt + (answer if whole else LONGEST))
        reserved = memory.reserved["r"]
        axis.barh(row, prompt, color="C0")
        axis.barh(row, answer, left=prompt, color="C5")
        axis.barh(row, reserved - prompt - answer, left=prompt + answer, color="C1", alpha=0.5)
        axis.text(reserved + 5, row, f"{reserved} places", va="center", fontsize=8)
    axis.set_yticks(range(len(allocators)), list(allocators))
    axis.invert_yaxis()
    axis.set(xlabel="places", xlim=(0, 600))
    colours = {"prompt": "C0", "answer": "C5", "reserved, and never used": "C1"}
    entries = [Patch(color=c, label=n) for n, c in colours.items()]
    axis.legend(handles=entries, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    axis.set_title(f"one request: a prompt of {prompt} tokens, an answer of {answer}", fontsize=9)
    axis.grid(axis="y", visible=False)
    plt.show()


def capacity(peak: Callable[[str, int], int], guess: float | None = None) -> None:
    """Requests at once for each kind of memory and each size, and how many times as many."""
    rooms, kinds = (2048, 4096, 8192, 16384), ("first fit", "buddies", "blocks of 16")
    found = np.array([[peak(kind, room) for room in rooms] for kind in kinds])
    _, (left, right) = plt.subplots(
        1, 2, figsize=(10, 3), width_ratios=(3, 2), layout="constrained"
    )
    for side, (kind, peaks) in enumerate(zip(kinds, found, strict=True)):
        bars = left.bar(np.arange(4) + 0.27 * (side - 1), peaks, 0.25, label=kind)
        left.bar_label(bars, fontsize=8)
    times = found[2] / found[0]
    right.plot(range(4), times, "o-", color="C2")
    for place, value in enumerate(times):
        right.annotate(f"{value:.1f}", (place, value), (0, 6), textcoords="offset points")
    if guess is not None:
        right.axhline(guess, color="C1", ls="--", label=f"your guess: {guess:g}")
        right.legend(loc="lower right")
    for axis in (left, right):
        axis.set_xticks(range(4), [f"{room:,}" for room in rooms])
        axis.set(xlabel="memory, in tokens")
        axis.grid(axis="x", visible=False)
    left.set(ylabel="requests at once, at most")
    left.set_title(f"capacity, for a trace of {len(TRACE)} requests in all", fontsize=9)
    left.legend(loc="upper left")
    right.set(ylabel="times as many", ylim=(0, 1.25 * max(times.max(), guess or 0)))
    right.set_title("blocks against first fit", fontsize=9)
    plt.show()


def waste(share: Callable[[int], float], guess: float | None = None) -> None:
    """The empty share of the reserved places, over the size of a block; 4 % is marked."""
    sizes = [1, 2, 4, 8, 16, 32, 64, 128]
    found = [100 * share(size) for size in sizes]
    _, axis = plt.subplots(figsize=(6.5, 3), layout="constrained")
    axis.plot(sizes, found, "o-", color="C0")
    for size, value in zip(sizes, found, strict=True):
        axis.annotate(f"{value:.1f}", (size, value), (-4, 6), textcoords="offset points",
                      ha="right", fontsize=8)  # fmt: skip
    axis.axhline(4, color="gray", lw=0.9, ls=":")
    axis.text(128, 4.6, "4 %", ha="right", color="gray", fontsize=8)
    if guess is not None:
        axis.plot([16], [guess], "*", ms=12, color="C1", label=f"your guess at 16: {guess:g} %")
        axis.legend()
    axis.set_xscale("log", base=2)
    axis.set_xticks(sizes, [str(size) for size in sizes])
    axis.set(xlabel="tokens a block", ylabel="% of the reserved places", xlim=(0.7, 160))
    axis.set(ylim=(-1, 1.12 * max(*found, guess or 0)))
    axis.set_title("empty slots over the trace, by the size of a block", fontsize=9)
    plt.show()


def explore(lengths: Sequence[int], blocks_for: Callable[[int, int], int]) -> None:
    """Move the block size: the slots of these requests, used and empty."""

    def draw(axis: Any, block_size: int) -> None:
        slots = [blocks_for(n, block_size) * block_size for n in lengths]
        rows = range(len(lengths))
        axis.barh(rows, lengths, color="C0")
        axis.barh(rows, np.subtract(slots, lengths), left=lengths, color="C1", alpha=0.5)
        for row, (used, end) in enumerate(zip(lengths, slots, strict=True)):
            if block_size > 4:  # else there would be more edge than block
                edges = range(0, end + 1, block_size)
                axis.vlines(edges, row - 0.4, row + 0.4, color="white", lw=0.8)
            axis.text(end + 3, row, str(end - used), va="center", fontsize=7)
        blocks = sum(slots) // block_size
        empty = 1 - sum(lengths) / sum(slots)
        axis.set(xlabel=f"{blocks} blocks, {empty:.0%} empty", xlim=(0, 165), yticks=[])
        axis.set_title(f"block_size = {block_size}", fontsize=8)
        axis.grid(visible=False)

    print("blue: tokens; orange: empty slots, their number at the end; white: edges of blocks")
    movable(draw, block_size=[1, 4, 8, 16, 32, 64])


def moment(line: str, first: Any, second: Any) -> tuple[str, list[int], list[int]]:
    """What happened, and the blocks of two tables then."""
    return line, list(first.block_ids), list(second.block_ids)


def fork_steps(story: Sequence[tuple[str, Sequence[int], Sequence[int]]]) -> None:
    """Two block tables after each event: a colour a block, so that what is shared looks alike."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 0.36 * len(story) + 0.9), sharey=True)
    for axis, name, side in zip(axes, ("first", "second"), (1, 2), strict=True):
        for row, line in enumerate(story):
            other = line[3 - side]
            for place, block in enumerate(line[side]):
                shared = block in other
                axis.barh(row, 0.96, 0.8, place, color=f"C{block}", alpha=0.35 if shared else 0.9)
                text = f"{block}, shared" if shared else str(block)
                axis.text(place + 0.48, row, text, ha="center", va="center", fontsize=8)
        axis.set(title=f"block table of {name}", xlim=(0, 3), xticks=[0.48, 1.48, 2.48])
        axis.set_xticklabels(["tokens 0-3", "tokens 4-7", "tokens 8-11"])
        axis.set_yticks(range(len(story)), [line[0] for line in story])
        axis.grid(visible=False)
    axes[0].invert_yaxis()
    figure.tight_layout()
    plt.show()


def load() -> tuple[Any, list[list[int]], list[Any]]:
    """The bundled model, and fourteen prompts with one beginning and answers of many lengths."""
    import torch

    from nanovllm.model.loader import load_model
    from nanovllm.tokenization.tokenizer import Tokenizer

    torch.set_num_threads(1)  # small products: more threads only wait for one another
    model, tokenizer = load_model(MODELS / "target"), Tokenizer.from_pretrained(MODELS / "target")
    prompts = [tokenizer.encode(SHARED + ASKED[i % 4]) for i in range(14)]
    lengths = [6 + 11 * i % 37 for i in range(14)]
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in lengths]
    return model, prompts, params


@dataclass
class Served:
    """What an engine did: answers by request, and after each step who held which block."""

    answers: dict[int, tuple[int, ...]] = field(default_factory=dict)
    preemptions: int = 0
    computed: int = 0  # tokens
    columns: list[list[int]] = field(default_factory=list)


def serve(model: Any, prompts: Sequence[list[int]], params: Sequence[Any], store: Any) -> Served:
    """All requests through an engine over this store, eight at a time."""
    from nanovllm.batching.config import EngineConfig
    from nanovllm.batching.engine import Engine
    from nanovllm.batching.events import Preempted, Stepped
    from nanovllm.generation.events import Finished

    engine = Engine(model, EngineConfig(max_num_seqs=8, max_num_batched_tokens=96), store=store)
    for number, (prompt, one) in enumerate(zip(prompts, params, strict=True)):
        engine.add_request(prompt, one, request_id=number)
    done = Served()
    while engine.has_unfinished:
        for event in engine.step():
            if isinstance(event, Finished):
                done.answers[event.request_id] = event.completion.token_ids
            elif isinstance(event, Stepped):
                done.computed += sum(chunk.length for chunk in event.chunks)
            done.preemptions += isinstance(event, Preempted)
        done.columns.append(_column(store))
    return done


def _column(store: Any) -> list[int]:
    """For each block the request that holds it, or FREE, TOGETHER, KEPT."""
    owners, kept = store.manager.owners(), set(store.cached_blocks())
    column = []
    for block in range(store.num_blocks):
        holders = owners.get(block, [])
        if len(holders) == 1:
            column.append(holders[0].sequence.request_id)
        else:
            column.append(TOGETHER if holders else KEPT if block in kept else FREE)
    return column


def alike(shared: int, count: int = 14, length: int = 96) -> list[Request]:
    """Requests whose prompts have the first `shared` tokens in common, and no other."""
    requests = []
    for number in range(count):
        own = range(1000 * (number + 1) + shared, 1000 * (number + 1) + length)
        params = SamplingParams(max_tokens=2)
        tokens = Tokens([*range(shared), *own], params, max_model_len=length + 2, seed=0)
        tokens.request_id = number
        requests.append(Request(number, tokens, 0.0, length + 1))
    return requests


def compute(manager: Any, request: Request, found: int) -> None:
    """Count all tokens of an admitted request as stored; `found` of them were there already."""
    end = request.num_tokens
    manager.commit(Plan((Chunk(request, found, end - found, end),)))
    request.num_computed_tokens = end


def admitted(manager: Any, lengths: Mapping[str, int]) -> dict[str, Request]:
    """Requests of such lengths, admitted one after another."""
    found = {}
    for number, (name, length) in enumerate(lengths.items()):
        found[name] = Request(number, SimulatedSequence(number, length, 9), 0.0, length + 8)
        manager.admit(found[name])
    return found


def block_map(runs: Mapping[str, Served]) -> None:
    """Blocks over steps: one colour and number a request; shared black, kept grey, free white."""
    figure, axes = plt.subplots(
        1, len(runs), figsize=(12, 5), sharey=True, squeeze=False, layout="constrained"
    )
    for axis, (name, run) in zip(axes[0], runs.items(), strict=True):
        grid = np.array(run.columns).T  # [B, steps]
        picture = np.ones((*grid.shape, 3))
        picture[grid == TOGETHER], picture[grid == KEPT] = 0.1, 0.7
        for number in range(14):  # the fifteenth colour would be grey
            picture[grid == number] = plt.cm.tab20(number)[:3]
        axis.imshow(picture, aspect="auto", interpolation="nearest", origin="lower")
        _numbers(axis, grid)
        text = f"{run.computed:,} tokens computed, {run.preemptions} preemptions"
        axis.set(xlabel="step", title=f"{name}: {text}")
        axis.grid(visible=False)
    axes[0, 0].set_ylabel("block")
    names = {"shared by several": 0.1, "kept: free, but still findable": 0.7, "free": 1.0}
    entries = [Patch(fc=str(grey), ec="0.4", label=name) for name, grey in names.items()]
    entries.append(Patch(fc=plt.cm.tab20(0), label="one request's, with its number"))
    figure.legend(handles=entries, loc="outside lower center", ncols=4)
    plt.show()


def _numbers(axis: Any, grid: np.ndarray) -> None:
    """The request's number in the middle of each stay that is long enough for it."""
    for block, row in enumerate(grid):
        ends = [*(np.flatnonzero(np.diff(row)) + 1), len(row)]
        for start, end in zip([0, *ends], ends, strict=False):
            if row[start] >= 0 and end - start >= 4:
                middle = (start + end - 1) / 2
                axis.text(middle, block, row[start], ha="center", va="center", fontsize=7)


def hit_rate(rate: Callable[[int], float], shared: Sequence[int], of: int) -> None:
    """The hit rate over the shared tokens, beside what whole blocks could give."""
    found = [100 * rate(n) for n in shared]
    block = [100 * (min(n, of - 1) // 16 * 16) / of for n in shared]
    _, axis = plt.subplots(figsize=(6.5, 3), layout="constrained")
    axis.plot(shared, [100 * n / of for n in shared], ":", color="gray", label="shared tokens")
    axis.plot(shared, block, "--", color="C1", label="in whole blocks, never all of them")
    axis.plot(shared, found, "o-", color="C0", label="counted by your cache")
    axis.set(xlabel=f"tokens that 14 prompts share, of {of}", ylabel="% of the tokens asked for")
    axis.set(ylim=(0, 105), xticks=shared)
    axis.set_title("hit rate, two requests at a time", fontsize=9)
    axis.legend()
    plt.show()


def small_pools(found: Mapping[str, Sequence[tuple[int, int, int]]]) -> None:
    """For each kind of preemption: preemptions and computed tokens, over the blocks of the pool."""
    _, axes = plt.subplots(1, 2, figsize=(9.5, 3), layout="constrained")
    for (name, rows), color, width in zip(found.items(), ("C1", "C0"), (4, 1.5), strict=True):
        sizes, *lines = zip(*rows, strict=True)
        for axis, line in zip(axes, lines, strict=True):
            axis.plot(sizes, line, "o-", color=color, lw=width, label=name)
    for axis, label in zip(axes, ("preemptions", "tokens computed"), strict=True):
        axis.set(xlabel="blocks in the pool", ylabel=label, ylim=(0, None))
    axes[0].set_title("preempted as often with both", fontsize=9)
    axes[1].set_title("only recompute pays in tokens", fontsize=9)
    axes[0].legend()
    plt.show()


def compaction(before: Mapping[str, Sequence[int]], after: Mapping[str, Sequence[int]]) -> None:
    """A cell a block, with the letter of its request and its place there; dotted: the last held."""
    _, axes = plt.subplots(2, 1, figsize=(9, 2.7), sharex=True, layout="constrained")
    moved = sum(len(set(blocks) - set(before[name])) for name, blocks in after.items())
    for axis, tables, when in zip(axes, (before, after), ("before", "after"), strict=True):
        needed = 1 + max(max(blocks) for blocks in tables.values())
        for number, (name, blocks) in enumerate(tables.items()):
            for place, block in enumerate(blocks):
                axis.bar(block, 1, 0.94, color=f"C{number}", alpha=0.55)
                new = when == "after" and block not in before[name]
                axis.text(block, 0.5, f"{name}{place}", ha="center", va="center", fontsize=8,
                          weight="bold" if new else "normal")  # fmt: skip
        axis.axvline(needed - 0.5, color="black", lw=1.2, ls=":")
        axis.set(xlim=(-0.6, 23.6), ylim=(0, 1), yticks=[], xticks=range(24))
        count = f", {moved} blocks moved (bold)" if when == "after" else ""
        axis.set_title(f"{when}: a pool of {needed} blocks would do{count}", fontsize=9)
        axis.grid(visible=False)
    axes[1].set_xlabel("block")
    plt.show()
