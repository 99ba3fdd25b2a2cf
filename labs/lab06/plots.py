"""The pictures of lab 06's notebook: each function takes data, draws, and returns nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from grader.student.notebook import COLOURS, movable, style

style(grid=False)
H100_BYTES, H100_FLOPS, H100_SMS = 3.35e12, 989e12, 132


def _owners(trace: Any, tensor: Any, axis: int, stores: bool) -> np.ndarray:
    """For each element the program (its place on one axis of the grid) that touched it; or -1."""
    found = np.full(tensor.numel(), -1)
    for access, elements in trace.elements(tensor):
        if access.is_store == stores:
            found[elements] = access.program[axis]
    return found.reshape(tensor.shape)


def _map(axis: Any, found: np.ndarray, title: str, name: str) -> None:
    """A map of who touched what, with a legend; white: nobody."""
    colours = ListedColormap(COLOURS)
    shown = np.ma.masked_less(found, 0)
    last = len(COLOURS) - 0.5
    axis.imshow(shown, aspect="auto", cmap=colours, vmin=-0.5, vmax=last, interpolation="nearest")
    entries = [Patch(color=COLOURS[n], label=f"{name} {n}") for n in np.unique(found[found >= 0])]
    axis.legend(handles=entries, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    axis.set_title(title, fontsize=9)
    axis.grid(False)


def elements_by_program(trace: Any, out: Any) -> None:
    """A vector, coloured by the program that stored each element."""
    _, axis = plt.subplots(figsize=(9, 0.9), layout="constrained")
    found = _owners(trace, out, 0, stores=True)
    _map(axis, found[None], "who stored which element of out", "program")
    axis.set(yticks=[], xlabel="element")
    plt.show()
    programs = len({access.program for access in trace.accesses})
    print(f"{programs} programs; {trace.bytes_read} bytes read, {trace.bytes_written} written")


def fused_bytes(traffic: Callable[[int], tuple[int, int]], guess: float | None = None) -> None:
    """Bytes of separate operations and of one kernel, over the number of tokens."""
    tokens = [1, 2, 4, 8, 16]
    pairs = np.array([traffic(n) for n in tokens])
    times = pairs[:, 0] / pairs[:, 1]
    _, (left, right) = plt.subplots(1, 2, figsize=(10, 2.8), layout="constrained")
    left.plot(tokens, pairs[:, 0] / 1024, "o-", color="gray", label="separate operations")
    left.plot(tokens, pairs[:, 1] / 1024, "o-", color="C2", label="your kernel")
    left.set(xlabel="tokens", ylabel="KiB read and written")
    left.set_title("add + RMSNorm, E = 256, bfloat16", fontsize=9)
    left.legend()
    right.plot(tokens, times, "o-", color="C2", label="counted")
    if guess is not None:
        right.axhline(guess, color="C1", ls="--", label=f"your guess: {guess:g}")
    right.set(
        xlabel="tokens", ylabel="times fewer bytes", ylim=(0, 1.3 * max(times.max(), guess or 0))
    )
    right.set_title("what fusion saves", fontsize=9)
    right.legend(loc="lower right")
    plt.show()


def three_kernels(counts: Mapping[str, tuple[int, int]]) -> None:
    """Bars of bytes for each kernel: by separate operations, and by the student's kernel."""
    _, axis = plt.subplots(figsize=(8, 2.8), layout="constrained")
    rows = np.arange(len(counts))
    unfused, fused = np.array(list(counts.values())).T
    axis.barh(rows - 0.2, unfused / 1024, 0.38, color="gray", label="separate operations")
    axis.barh(rows + 0.2, fused / 1024, 0.38, color="C2", label="your kernel")
    for row, (a, b) in enumerate(zip(unfused, fused, strict=True)):
        axis.text(a / 1024 + 0.5, row - 0.2, f"{a:,}", va="center", fontsize=8)
        text = f"{b:,}   {a / b:.1f} times fewer"
        axis.text(b / 1024 + 0.5, row + 0.2, text, va="center", fontsize=8)
    axis.set_yticks(rows, counts)
    axis.invert_yaxis()
    axis.set(xlabel="KiB read and written, 8 tokens", xlim=(0, 1.35 * unfused.max() / 1024))
    axis.legend(loc="lower right")
    plt.show()


def fused_projection(trace: Any, qkv: Any, parts: Sequence[str]) -> None:
    """The fused projection [T, heads, D]: which token's program stored what."""
    _, axis = plt.subplots(figsize=(9, 2.2), layout="constrained")
    found = _owners(trace, qkv, 0, stores=True)
    _map(axis, found.reshape(len(found), -1), "", "token")
    dim = qkv.shape[2]
    for head, name in enumerate(parts):
        axis.axvline(head * dim - 0.5, color="black", lw=0.6)
        axis.text((head + 0.5) * dim - 0.5, -0.7, name, ha="center", va="bottom", fontsize=8)
    axis.set(xlabel="column of the fused projection", ylabel="token")
    axis.set_title("rope_ on two slices: stored by which program", fontsize=9, pad=16)
    plt.show()


def row_parts(runs: Mapping[int, Any], outs: Mapping[int, Any]) -> None:
    """One row of the gate's output for each block size: which program of a row wrote what."""
    _, axes = plt.subplots(len(runs), 1, figsize=(9, 0.75 * len(runs)), layout="constrained")
    for axis, block in zip(axes, runs, strict=True):
        found = _owners(runs[block], outs[block], 1, stores=True)[:1]
        axis.imshow(
            found % 2, aspect="auto", cmap=ListedColormap(COLOURS[:2]), interpolation="nearest"
        )
        axis.set(yticks=[], ylabel=f"block {block}")
        axis.yaxis.label.set(rotation=0, ha="right", va="center")
        axis.grid(False)
        number = len(np.unique(found))
        text = "1 program" if number == 1 else f"{number} programs"
        axis.text(1.01, 0.5, text, transform=axis.transAxes, va="center", fontsize=8)
        axis.set_xticks([] if block != list(runs)[-1] else np.arange(0, found.shape[1], 64))
    axes[0].set_title(
        "one row, cut by `block`: neighbouring programs have different colours", fontsize=9
    )
    axes[-1].set_xlabel("column")
    plt.show()


def cache_by_token(trace: Any, k_cache: Any) -> None:
    """The key cache, position by block, coloured by the token that was stored there."""
    _, axis = plt.subplots(figsize=(6, 2.2), layout="constrained")
    found = _owners(trace, k_cache, 0, stores=True)[..., 0, 0]
    _map(axis, found.T, "the key cache: written by which token", "token")
    axis.set(xlabel="block", ylabel="position", xticks=range(len(k_cache)))
    axis.set_yticks(range(k_cache.shape[1]))
    plt.show()


def running_softmax(steps: Callable[[Any, int], list[tuple[float, float]]], scores: Any) -> None:
    """Maximum and total after each tile, for three tile sizes; the end must be the same."""
    _, axes = plt.subplots(1, 3, figsize=(11, 2.6), sharey=True, layout="constrained")
    for axis, tile in zip(axes, (4, 8, 24), strict=True):
        line = steps(scores, tile)
        ends = [min(len(scores), (i + 1) * tile) for i in range(len(line))]
        axis.step(ends, [m for m, _ in line], where="post", color="C1", label="maximum")
        axis.plot(ends, [t for _, t in line], "o-", ms=3, color="C0", label="total, relative to it")
        axis.set(xlabel="keys seen", title=f"tiles of {tile}: total {line[-1][1]:.4f}")
    axes[0].legend(fontsize=8)
    plt.show()


def blocks_by_program(trace: Any, k_cache: Any) -> None:
    """The key cache of a decode step: read for which sequence, and by which head's program."""
    _, (left, right) = plt.subplots(
        1, 2, figsize=(11, 2.2), width_ratios=(2, 1), layout="constrained"
    )
    sequences = _owners(trace, k_cache, 0, stores=False)[..., 0, 0]
    _map(left, sequences.T, "key head 0: read for which sequence", "sequence")
    left.set(xlabel="block", ylabel="position in the block", xticks=range(len(k_cache)))
    heads = _owners(trace, k_cache, 1, stores=False)[:, 0, :, 0]
    _map(right, heads.T, "position 0: read by which program of a sequence", "program")
    right.set(xlabel="block", ylabel="key head", yticks=range(k_cache.shape[2]))
    right.set_xticks(range(0, len(k_cache), 2))
    plt.show()


def parts_of_contexts(
    reads: Mapping[int, Mapping[tuple, set[int]]], contexts: Sequence[int]
) -> None:
    """Which positions of which sequence a program reads, for each number of splits.

    reads: splits -> (program, sequence) -> positions.
    """
    _, axes = plt.subplots(1, len(reads), figsize=(11, 2.6), layout="constrained")
    for axis, (splits, found) in zip(axes, reads.items(), strict=True):
        rows = sorted(found, key=lambda item: (item[1], min(found[item])))
        for row, key in enumerate(rows):
            first, last = min(found[key]), max(found[key])
            axis.barh(row, last - first + 1, left=first, color=COLOURS[key[1]])
            axis.text(last + 4, row, str(len(found[key])), va="center", fontsize=7)
        axis.set(yticks=[], xlabel="position", xlim=(0, 1.12 * max(contexts)))
        axis.set_title(
            f"{splits} split{'s' if splits > 1 else ''}: {len(rows)} programs read", fontsize=9
        )
        axis.invert_yaxis()
    axes[0].set_ylabel("program")
    names = [Patch(color=COLOURS[i], label=f"{n} tokens") for i, n in enumerate(contexts)]
    axes[0].legend(handles=names, fontsize=8, loc="lower right")
    plt.show()


def _filling(axes: Any, steps: Callable[[int, int], float], users: int) -> None:
    splits = [1, 2, 3, 4, 6, 8, 12, 16, 17, 24, 32, 33, 34, 48, 64, 128]
    axes.plot(splits, [steps(users, s) for s in splits], "o-", ms=3, color="C0")
    axes.axhline(users * 8 * 8192 / H100_SMS, color="C2", ls="--")
    axes.set(xscale="log", yscale="log", xlabel="splits")
    if axes.get_subplotspec().is_first_col():
        axes.set_ylabel("keys, one after another")
    axes.set(xticks=[1, 4, 16, 64], ylim=(3e2, 1e5))
    axes.set_xticklabels(["1", "4", "16", "64"])
    axes.minorticks_off()


def explore(steps: Callable[[int, int], float]) -> None:
    """How long a decode step is over the number of splits; move the number of users.

    Each user has 8 key heads and 8,192 keys; dashed: all 132 SMs busy from start to end.
    """
    movable(lambda axes, users: _filling(axes, steps, users), users=[1, 2, 4, 8, 16])


def causal(reads: Mapping[str, Mapping[tuple, set[int]]], keys: int) -> None:
    """Which keys each program of a prefill reads, with and without a window."""
    _, axes = plt.subplots(1, len(reads), figsize=(10, 2.4), layout="constrained")
    for axis, (title, found) in zip(axes, reads.items(), strict=True):
        rows = sorted(found.values(), key=lambda read: (max(read), min(read)))
        seen = np.zeros((len(rows), keys))
        for row, read in enumerate(rows):
            seen[row, list(read)] = 1
        axis.imshow(seen, aspect="auto", cmap="Blues", vmax=1.5, interpolation="nearest")
        axis.grid(False)
        axis.set(xlabel="key", ylabel="program", yticks=range(len(rows)))
        axis.set_title(f"{title}: {1 - seen.mean():.0%} never read", fontsize=9)
    plt.show()


def bandwidth(overhead: float = 5e-6) -> None:
    """A model: the share of the bandwidth that kernels reach when a launch costs something."""
    sizes = np.logspace(3, 9.5, 60)
    one = overhead + sizes / H100_BYTES
    eight = 8 * overhead + 4 * sizes / H100_BYTES
    _, axis = plt.subplots(figsize=(7, 2.8), layout="constrained")
    axis.plot(sizes, sizes / one / H100_BYTES, color="C0", label="one kernel")
    label = "8 kernels that move 4 times the bytes"
    axis.plot(sizes, sizes / eight / H100_BYTES, color="gray", label=label)
    axis.axvline(overhead * H100_BYTES, color="black", lw=0.8, ls=":")
    axis.text(
        overhead * H100_BYTES * 1.2, 0.02, f"{overhead * H100_BYTES / 1e6:.0f} MB", fontsize=8
    )
    axis.set(xscale="log", xlabel="bytes that have to move", ylabel="useful share of bandwidth")
    axis.set_title(f"a model: {overhead * 1e6:g} microseconds a launch", fontsize=9)
    axis.legend(loc="upper left", fontsize=8)
    plt.show()
