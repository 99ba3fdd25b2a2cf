"""The pictures of lab 02's notebook: functions that take data and draw it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes

GIB = 2**30
plt.rcParams["axes.titlesize"] = 9


def waits(draw: Callable[..., None]) -> Callable[..., None]:
    """A picture of a function that the student writes in the notebook; one line until it is."""

    @functools.wraps(draw)
    def wrapped(*given: object, **named: object) -> None:
        try:
            draw(*given, **named)
        except NotImplementedError as error:
            if str(error):
                raise
            print("Write the function in the cell above, run that cell, then run this one again.")

    return wrapped


def frequencies(angles: Callable, frequencies: torch.Tensor) -> None:
    """The cosine of a fast, a middle and a slow pair over 200 positions."""
    figure, axes = plt.subplots(figsize=(7, 2.8))
    positions = torch.arange(200)
    cos, _ = angles(positions, frequencies)
    for pair in (0, 8, 16, 24):
        axes.plot(positions, cos[:, pair], label=f"pair {pair}")
    axes.set(xlabel="position", ylabel="cosine of the angle", title="Fast pairs and slow pairs")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8)
    figure.tight_layout()
    plt.show()


def score_by_distance(axes: Axes, scores: Sequence[float]) -> None:
    """The score of two equal vectors against the distance of their tokens."""
    axes.plot(range(len(scores)), scores, color="C1")
    axes.set(xlabel="distance of query and key", ylim=(-0.5, 1.1))
    if axes.get_subplotspec().is_first_col():
        axes.set_ylabel("score")


@waits
def sharpness(
    largest_weight: Callable[[int, bool], float],
    guess: Mapping[str, float | None],
    heads: Sequence[int] = (8, 16, 32, 64, 128),
) -> None:
    """The largest weight with and without the division by sqrt(D), and the guesses for D = 64."""
    figure, axes = plt.subplots(figsize=(6, 3.2))
    for divide, name, color in ((True, "with", "C0"), (False, "without", "C1")):
        weights = [largest_weight(size, divide) for size in heads]
        axes.plot(heads, weights, "o-", color=color, label=f"{name} the division")
        if guess.get(name) is not None:
            axes.plot(64, guess[name], "*", ms=14, color=color, mec="black", label="your guess")
    axes.set_xscale("log", base=2)
    axes.set_xticks(heads, [str(size) for size in heads])
    axes.set(xlabel="D, the size of a head", ylabel="weight of the best key", ylim=(0, 1.05))
    axes.set_title("One query, 64 random keys: who gets the weight?")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8)
    figure.tight_layout()
    plt.show()


def weights_of(attention: Callable, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """The weights [H, T, S] of an attention, read off with values that are ones and zeros."""
    keys, groups, dim = k.shape
    columns = []
    for first in range(0, keys, dim):
        values = torch.zeros(keys, groups, dim)
        for column in range(first, min(first + dim, keys)):
            values[column, :, column - first] = 1.0
        columns.append(attention(q, k, values))
    return torch.cat(columns, dim=-1)[:, :, :keys].transpose(0, 1)


def looked_at(weights: Sequence[torch.Tensor], words: Sequence[str]) -> None:
    """What each word looks at: all heads, and the two whose last word looks far back."""
    stacked = torch.stack(list(weights))  # [L, H, T, T]
    far = slice(1, len(words) // 2)  # not the first token, which many heads look at for nothing
    peaks = stacked[:, :, -1, far].amax(-1)
    chosen = [divmod(int(i), stacked.shape[1]) for i in peaks.flatten().topk(2).indices]
    figure, axes = plt.subplots(1, 3, figsize=(13, 4.9))
    pictures = [("mean of all layers and heads", stacked.mean((0, 1)))]
    pictures += [(f"layer {layer}, head {head}", stacked[layer, head]) for layer, head in chosen]
    for axis, (title, picture) in zip(axes, pictures, strict=True):
        drawn = axis.imshow(picture, cmap="magma", vmin=0, vmax=float(picture[1:, 1:].max()))
        axis.set_xticks(range(len(words)), words, rotation=90, fontsize=8)
        axis.set_yticks(range(len(words)), words, fontsize=8)
        axis.set(title=title, xlabel="looked at")
        axis.grid(False)
        figure.colorbar(drawn, ax=axis, shrink=0.75, label="weight", extend="max")
    axes[0].set_ylabel("looking")
    figure.tight_layout()
    plt.show()


@waits
def steps(rows_of_steps: Callable[[bool], Sequence[int]]) -> None:
    """Tokens that pass the model in each step, with a cache and without."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), width_ratios=(2, 1))
    totals = []
    for cached, name, color in ((False, "without a cache", "C1"), (True, "with a cache", "C0")):
        rows = rows_of_steps(cached)
        totals.append(sum(rows))
        left.step(range(1, len(rows) + 1), rows, where="mid", color=color, label=name)
    left.set(xlabel="step", ylabel="tokens through the model")
    left.set_title("Your engine, step by step")
    left.legend()
    drawn = right.bar(["without", "with"], totals, color=["C1", "C0"])
    right.bar_label(drawn, fmt="{:,.0f}")
    right.set(title="All steps together", ylabel="tokens through the model")
    right.margins(y=0.15)
    right.grid(axis="x")
    figure.tight_layout()
    plt.show()


@waits
def damage(
    damage_of: Callable[[int], tuple[float, float]],
    shifts: Sequence[int] = (0, 1, 2, 4, 8, 16, 32, 64),
) -> None:
    """What shifted positions do to the choices, which a reader sees, and to the logits."""
    shares, changes = zip(*(damage_of(shift) for shift in shifts), strict=True)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3))
    names = [str(shift) for shift in shifts]
    drawn = left.bar(names, [100 * share for share in shares], color="C0")
    left.bar_label(drawn, fmt="%.0f", fontsize=8)
    left.set(ylabel="% of next tokens", ylim=(0, 112), title="Choices that stay the same")
    drawn = right.bar(names, changes, color="C1")
    right.bar_label(drawn, fmt="%.2f", fontsize=8)
    right.set(ylabel="mean change of a logit", title="What a check of the logits sees")
    right.margins(y=0.12)
    for axes in (left, right):
        axes.set_xlabel("new tokens stand so many positions too late")
        axes.grid(axis="x")
    figure.tight_layout()
    plt.show()


def flops(lengths: Sequence[int], without: Sequence[float], with_: Sequence[float]) -> None:
    """Operations of a whole generation, with a cache and without."""
    figure, axes = plt.subplots(figsize=(6.5, 3.4))
    for values, name, color in ((without, "without a cache", "C1"), (with_, "with a cache", "C0")):
        tera = [value / 1e12 for value in values]
        axes.loglog(lengths, tera, "o-", ms=3, color=color)
        label = f"{name}\n{tera[-1]:,.0f} TFLOP"
        axes.annotate(label, (lengths[-1], tera[-1]), xytext=(6, 0), textcoords="offset points",
                      va="center", color=color, fontsize=8)  # fmt: skip
    axes.set(xlabel="tokens generated after a prompt of 128", ylabel="TFLOP")
    axes.set_title("Llama-3.1-8B: operations of a whole generation")
    axes.set_xlim(right=lengths[-1] * 8)
    figure.tight_layout()
    plt.show()


def memory(
    axes: Axes, weights: float, bytes_per_token: float, requests: int, budget: float = 80
) -> None:
    """Weights and cache in GiB against the context of so many requests, below a budget."""
    context = [2**i for i in range(9, 18)]
    cache = [requests * tokens * bytes_per_token / GIB for tokens in context]
    base = [weights / GIB] * len(context)
    names = [
        f"weights, {weights / GIB:.0f} GiB",
        f"cache of {requests} request{'s' if requests > 1 else ''}",
    ]
    axes.stackplot(context, base, cache, colors=["C5", "C0"], labels=names)
    axes.axhline(budget, color="black", lw=1)
    axes.text(context[0], 0.98 * budget, f"{budget} GiB", va="top", fontsize=8)
    axes.set_xscale("log", base=2)
    axes.set_xticks([2**9, 2**12, 2**15], ["512", "4Ki", "32Ki"])
    fit = max(0, int((budget * GIB - weights) / (requests * bytes_per_token)))
    axes.set(xlabel=f"tokens of each request\n({fit:,} fit)", ylim=(0, 1.5 * budget))
    if axes.get_subplotspec().is_first_col():
        axes.set_ylabel("GiB")
    axes.legend(loc="upper left", fontsize=6)


def training(parts: Mapping[str, Mapping[str, float]]) -> None:
    """Memory part by part, one bar for each name; parts are bytes."""
    figure, axes = plt.subplots(figsize=(7.5, 2.6))
    kinds = list(dict.fromkeys(kind for bar in parts.values() for kind in bar))
    names = list(parts)
    left = [0.0] * len(names)
    for number, kind in enumerate(kinds):
        width = [parts[name].get(kind, 0) / GIB for name in names]
        axes.barh(names, width, left=left, color=f"C{number}", label=kind)
        left = [a + b for a, b in zip(left, width, strict=True)]
    for row, total in enumerate(left):
        axes.text(total + 1, row, f"{total:.1f}", va="center", fontsize=8)
    axes.invert_yaxis()
    axes.set(xlabel="GiB", xlim=(0, 1.12 * max(left)))
    axes.set_title("Llama-2-13B, 4,096 tokens")
    axes.grid(axis="y")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8)
    figure.tight_layout()
    plt.show()
