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


def _writers(trace: Any, tensor: Any) -> np.ndarray:
    """For each element the number of the program that stored it last; or -1.

    Programs are numbered as they first appear in the trace, so a grid may have any shape.
    """
    numbers: dict[tuple, int] = {}
    for access in trace.accesses:
        numbers.setdefault((access.launch, access.program), len(numbers))
    found = np.full(tensor.numel(), -1)
    for access, elements in trace.elements(tensor):
        if access.is_store:
            found[elements] = numbers[access.launch, access.program]
    return found.reshape(tensor.shape)


def _map(axis: Any, found: np.ndarray, title: str, name: str) -> None:
    """A map of who touched what, with a legend; white: nobody."""
    numbers, count = np.unique(found[found >= 0]), len(COLOURS)
    shown = np.ma.masked_where(found < 0, np.searchsorted(numbers, found) % count)
    axis.imshow(shown, aspect="auto", cmap=ListedColormap(COLOURS), vmin=-0.5, vmax=count - 0.5,
                interpolation="nearest")  # fmt: skip
    if len(numbers) <= count:
        entries = [Patch(color=COLOURS[i], label=f"{name} {n}") for i, n in enumerate(numbers)]
        axis.legend(handles=entries, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    else:
        text = f"{len(numbers)} {name}s;\ncolours repeat"
        axis.text(1.02, 0.5, text, transform=axis.transAxes, va="center", fontsize=8)
    axis.set_title(title, fontsize=9)
    axis.grid(False)


def elements_by_program(trace: Any, out: Any) -> None:
    """A vector, coloured by the program that stored each element."""
    _, axis = plt.subplots(figsize=(9, 0.9), layout="constrained")
    _map(axis, _writers(trace, out)[None], "who stored which element of out", "program")
    axis.set(yticks=[], xlabel="element")
    plt.show()
    programs = len({(access.launch, access.program) for access in trace.accesses})
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
        axis.text(a / 1024 + 0.5, row - 0.2, f"{a:,} bytes", va="center", fontsize=8)
        text = f"{b:,} bytes, {a / b:.1f} times fewer"
        axis.text(b / 1024 + 0.5, row + 0.2, text, va="center", fontsize=8)
    axis.set_yticks(rows, counts)
    axis.invert_yaxis()
    axis.set(xlabel="KiB read and written, 8 tokens", xlim=(0, 1.35 * unfused.max() / 1024))
    axis.legend(loc="lower right")
    plt.show()


def fused_projection(trace: Any, qkv: Any, parts: Sequence[str]) -> None:
    """The fused projection [T, heads, D]: which program stored what."""
    _, axis = plt.subplots(figsize=(9, 2.2), layout="constrained")
    found = _writers(trace, qkv)
    _map(axis, found.reshape(len(found), -1), "", "program")
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
        found = _writers(runs[block], outs[block])[:1]
        places = {number: place for place, number in enumerate(dict.fromkeys(found[0].tolist()))}
        parity = np.array([[places[number] % 2 for number in found[0].tolist()]])
        axis.imshow(
            np.ma.masked_where(found < 0, parity), aspect="auto", vmin=0, vmax=1,
            cmap=ListedColormap(COLOURS[:2]), interpolation="nearest",
        )  # fmt: skip
        axis.set(yticks=[], ylabel=f"block {block}")
        axis.yaxis.label.set(rotation=0, ha="right", va="center")
        axis.grid(False)
        number = len(places.keys() - {-1})
        text = "1 program" if number == 1 else f"{number} programs"
        axis.text(1.01, 0.5, text, transform=axis.transAxes, va="center", fontsize=8)
        axis.set_xticks([] if block != list(runs)[-1] else np.arange(0, found.shape[1], 64))
    axes[0].set_title(
        "one row, cut by `block`: neighbouring programs have different colours", fontsize=9
    )
    axes[-1].set_xlabel("column")
    plt.show()


def cache_by_token(trace: Any, k_cache: Any, k: Any) -> None:
    """The key cache, position by block, coloured by the token whose key was stored there."""
    _, axis = plt.subplots(figsize=(6, 2.2), layout="constrained")
    stored = _writers(trace, k_cache)[..., 0, 0] >= 0
    found = np.full(stored.shape, -1)
    for token, key in enumerate(k[:, 0, 0].numpy()):  # which program stored it does not matter
        found[stored & (k_cache[..., 0, 0].numpy() == key)] = token
    _map(axis, found.T, "the key cache: which token's key was stored", "token")
    axis.set(xlabel="block", ylabel="position", xticks=range(len(k_cache)))
    axis.set_yticks(range(k_cache.shape[1]))
    plt.show()
    if lost := int((stored & (found < 0)).sum()):
        print(f"{lost} positions got something that is no token's key")


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


def blocks_by_program(trace: Any, k_cache: Any, tables: Any, lens: Any) -> None:
    """The key cache of a decode step: whose blocks were read, and by which of its programs."""
    owner, size = np.full(len(k_cache), -1), k_cache.shape[1]
    for number, (row, length) in enumerate(zip(tables.numpy(), lens.tolist(), strict=True)):
        owner[row[: -(-length // size)]] = number
    sequences, programs = np.full((2, k_cache.numel()), -1)
    numbers: list[dict[tuple, int]] = [{} for _ in lens]  # of each sequence's programs
    for access, elements in trace.elements(k_cache):
        whose = owner[elements // k_cache[0].numel()]
        for sequence in set(whose.tolist()) - {-1}:
            mine, program = elements[whose == sequence], (access.launch, access.program)
            sequences[mine] = sequence
            programs[mine] = numbers[sequence].setdefault(program, len(numbers[sequence]))
    _, (left, right) = plt.subplots(
        1, 2, figsize=(11, 2.2), width_ratios=(2, 1), layout="constrained"
    )
    sequences = sequences.reshape(k_cache.shape)[..., 0, 0]
    _map(left, sequences.T, "key head 0: the sequence whose block was read", "sequence")
    left.set(xlabel="block", ylabel="position in the block", xticks=range(len(k_cache)))
    programs = programs.reshape(k_cache.shape)[:, 0, :, 0]
    _map(right, programs.T, "position 0: read by which program of a sequence", "program")
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
