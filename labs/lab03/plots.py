"""The drawing of lab 03's notebook: functions that take data, and return nothing."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch, Rectangle

from grader.student.notebook import movable

BLUE, ORANGE, GREEN, GREY = "C0", "C1", "C2", "#b8bec4"


def timeline(prompt_tokens: int, prefill_ms: float, token_ms: Sequence[float]) -> None:
    """One request as a bar: the prefill, then a piece for each decode step."""
    _, axes = plt.subplots(figsize=(9, 1.9))
    axes.grid(visible=False)
    axes.barh(0, prefill_ms, color=BLUE, height=0.5, label=f"prefill, {prompt_tokens} tokens")
    for i, (start, end) in enumerate(itertools.pairwise(token_ms)):
        label = "decode, 1 token each" if i == 0 else None
        axes.barh(
            0, end - start, left=start, color=GREEN, height=0.5, edgecolor="white", label=label
        )
    axes.plot(token_ms, [0.34] * len(token_ms), "v", color="black", ms=4, label="a token comes out")
    axes.annotate("TTFT", (token_ms[0], -0.45), ha="center")
    axes.set(yticks=[], xlabel="milliseconds since the request arrived", ylim=(-0.6, 0.5))
    axes.spines["left"].set_visible(False)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncol=3, frameon=False)
    plt.show()


def explore(shaped: Callable[[float, float], Any], words: Sequence[str]) -> None:
    """A distribution that moves with temperature and top_p; grey: the model's own."""

    own = np.asarray(shaped(1.0, 1.0))
    places = np.arange(len(words))

    def draw(axes: Axes, temperature: float, top_p: float) -> None:
        probabilities = np.asarray(shaped(temperature, top_p))
        axes.barh(places, own, color=GREY, height=0.85)
        axes.barh(places, probabilities, color=BLUE, height=0.45)
        axes.set_yticks(places, words)
        axes.set_ylim(len(words) - 0.5, -0.5)
        axes.set(xlim=(0, 1.02), xticks=[0, 0.5, 1], xlabel="probability")
        left = f"{int((probabilities > 0).sum())} left"
        axes.text(0.96, 0.06, left, transform=axes.transAxes, ha="right")

    movable(
        draw,
        temperature=[0.2, 0.5, 0.8, 1.0, 1.5, 2.0],
        top_p=[0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0],
    )


def draws(shares: Sequence[float], probabilities: Sequence[float], count: int) -> None:
    """How often each id was drawn, beside its probability."""
    _, axes = plt.subplots(figsize=(6, 2.6))
    ids = np.arange(len(probabilities))
    axes.bar(ids - 0.2, probabilities, 0.4, color=GREY, label="probability")
    axes.bar(ids + 0.2, shares, 0.4, color=BLUE, label=f"share of {count:,} draws")
    axes.set(xlabel="token id", ylabel="share", xticks=ids)
    axes.set_title("The draws follow the probabilities")
    axes.legend(frameon=False)
    plt.show()


def surprise(surprise_of: Callable[[float, float], float], guess: float | None = None) -> None:
    """Mean surprise of a text's tokens over temperature, without and with top_p."""
    temperatures = [0.0, 0.5, 1.0, 1.5, 2.0]
    _, axes = plt.subplots(figsize=(6, 2.8))
    for top_p, colour, mark in ((1.0, ORANGE, "s"), (0.8, BLUE, "o")):
        values = [surprise_of(t, top_p) for t in temperatures]
        axes.plot(temperatures, values, f"{mark}-", color=colour, label=f"top_p {top_p:g}")
    if guess is not None:
        axes.plot(2.0, guess, "k*", ms=12, label="your guess (temperature 2, top_p 1)")
    axes.set(xlabel="temperature", ylabel="surprise a token, nats", ylim=(0, None))
    axes.set_xticks(temperatures)
    axes.set_title("What the model itself thinks of the text")
    axes.legend(frameon=False, loc="upper left")
    plt.show()


def beams(sums: dict[int, float], greedy: Sequence[float], best: Sequence[float]) -> None:
    """Log-probability of the best text by width, and how two of them got there."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3))
    widths = list(sums)
    left.plot(widths, [sums[width] for width in widths], "o-", color=BLUE)
    left.set(xlabel="beam width", ylabel="log-probability of the text", xticks=widths)
    left.set_title("Wider finds likelier texts")
    steps = range(1, len(greedy) + 1)
    right.plot(steps, greedy, "s-", ms=4, color=ORANGE, label="width 1: greedy")
    right.plot(range(1, len(best) + 1), best, "o-", ms=4, color=BLUE, label="width 4")
    right.set(xlabel="tokens written", ylabel="log-probability so far")
    right.set_xticks(range(0, len(greedy) + 1, 5))
    right.set_title("Greedy leads first, and pays later")
    right.legend(frameon=False)
    figure.tight_layout()
    plt.show()


def chunks(sizes: Sequence[int], peaks: Sequence[int], steps: Sequence[int]) -> None:
    """What the largest step has to hold, and what the chunks cost."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 2.8))
    places = range(len(sizes))
    left.bar(places, [peak / 1e6 for peak in peaks], color=BLUE)
    left.set(ylabel="scores, millions a head", title="What the largest step holds")
    right.bar(places, steps, color=GREEN)
    right.set(ylabel="steps: each reads all weights", title="What the chunks cost")
    for axes in (left, right):
        axes.set_xticks(places, [f"{size:,}" for size in sizes])
        axes.set_xlabel("chunk size")
    figure.tight_layout()
    plt.show()


def rectangle(prompts: Sequence[int], generated: Sequence[int]) -> None:
    """Each cell is a token that goes through the model, by what it is good for."""
    width = max(prompts)
    grid = np.zeros((len(prompts), width + max(generated) - 1))
    for row, (tokens, new) in enumerate(zip(prompts, generated, strict=True)):
        grid[row, width - tokens : width] = 1
        grid[row, width : width + new - 1] = 2
    _, axes = plt.subplots(figsize=(10, 2.6))
    axes.grid(visible=False)
    colours = ListedColormap([ORANGE, BLUE, GREEN])
    axes.pcolormesh(grid, cmap=colours, vmin=0, vmax=2, edgecolors="white", linewidth=0.4)
    axes.axvline(width, color="black", lw=1)
    axes.set(xlabel="column", ylabel="row", yticks=np.arange(len(prompts)) + 0.5)
    axes.set_yticklabels(range(len(prompts)))
    axes.invert_yaxis()
    names = {BLUE: "prompt", GREEN: "generated", ORANGE: "computed for nobody"}
    patches = [Patch(color=colour, label=name) for colour, name in names.items()]
    axes.legend(handles=patches, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncol=3,
                frameon=False)  # fmt: skip
    plt.show()


def idle_share(wasted: Callable[[Sequence[int], int], float], guess: float | None = None) -> None:
    """Share of idle steps by batch size, for requests as they came and sorted by length."""
    lengths = np.random.default_rng(0).lognormal(mean=4, sigma=0.8, size=1024).astype(int) + 1
    sizes = [1, 2, 4, 8, 16, 32, 64, 128]
    orders = {"as they came": (lengths, ORANGE, "s"), "sorted": (np.sort(lengths), BLUE, "o")}
    _, axes = plt.subplots(figsize=(6, 2.8))
    for name, (order, colour, mark) in orders.items():
        shares = [wasted(order.tolist(), size) for size in sizes]
        axes.plot(sizes, shares, f"{mark}-", color=colour, label=name)
    if guess is not None:
        axes.plot(64, guess, "k*", ms=12, label="your guess (64 rows, as they came)")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set(xlabel="rows of a batch", ylabel="share of steps idle", ylim=(-0.02, 1))
    axes.set_title("All wait for the longest")
    axes.legend(frameon=False, loc="upper left")
    plt.show()


def roof(hardware: Any, works: dict[str, Any]) -> None:
    """A machine's roof, and what steps reach under it; names that begin with `prefill` are blue."""
    _, axes = plt.subplots(figsize=(8, 4.2))
    x = np.logspace(-1, 4.2, 200)
    axes.loglog(x, [hardware.attainable(i) / 1e12 for i in x], color="black", lw=1.5)
    axes.axvline(hardware.ridge, color="black", ls=":", lw=1)
    axes.text(hardware.ridge * 1.1, 0.45, f"ridge: {hardware.ridge:.0f} operations a byte")
    for name, work in works.items():
        rate = hardware.attainable(work.intensity) / 1e12
        is_prefill = name.startswith("prefill")
        axes.plot(work.intensity, rate, "o" if is_prefill else "s", ms=7,
                  color=BLUE if is_prefill else GREEN)  # fmt: skip
        shift, side = ((-8, 7), "right") if is_prefill else ((8, -13), "left")
        axes.annotate(name, (work.intensity, rate), xytext=shift, ha=side,
                      textcoords="offset points")  # fmt: skip
    axes.set(xlabel="operations per byte moved", ylabel="TFLOP/s that can be reached",
             ylim=(0.3, 3000), title=f"Llama-3-8B on an {hardware.name}")  # fmt: skip
    plt.show()


def knee(rate: Callable[[int, int], float], guess: float | None = None) -> None:
    """Tokens a second by rows of a decode step, for several lengths of cache."""
    rows = [2**i for i in range(11)]
    _, axes = plt.subplots(figsize=(6.5, 3.2))
    marks = {0: "o", 256: "s", 1024: "^", 8192: "v"}
    for (cached, mark), colour in zip(marks.items(), (BLUE, ORANGE, GREEN, "C3"), strict=True):
        axes.loglog(rows, [rate(n, cached) for n in rows], f"{mark}-", ms=4, color=colour,
                    label=f"{cached:,} tokens cached")  # fmt: skip
    if guess is not None:
        axes.axvline(guess, color="black", ls="--", lw=1, label="your guess: the ridge, 0 cached")
    axes.set_xticks(rows[::2], [f"{n:,}" for n in rows[::2]])
    axes.minorticks_off()
    axes.set(xlabel="rows that decode together", ylabel="tokens a second",
             title="A batch is free, until it is not")  # fmt: skip
    axes.legend(frameon=False, loc="upper left")
    plt.show()


def burst(alone: dict[int, Any], together: dict[int, Any]) -> None:
    """Waiting and tokens of each request: one at a time, and in one batch."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 3), sharey=True, sharex=True)
    titles = ("one at a time", "one batch")
    for each, lines, title in zip(axes, (alone, together), titles, strict=True):
        for request, line in lines.items():
            moments = 1e3 * (np.array(line.token_times) - line.arrival)
            each.barh(request, moments[0], color=GREY, height=0.7)
            each.plot(moments, [request] * len(moments), "|", color=GREEN, ms=9)
        each.grid(visible=False)
        each.set(title=title, xlabel="milliseconds since the burst", xlim=(0, None))
    axes[0].set_ylabel("request")
    axes[0].invert_yaxis()
    waits, tokens = Patch(color=GREY, label="waits"), Patch(color=GREEN, label="tokens")
    axes[1].legend(handles=[waits, tokens], loc="lower right", frameon=False)
    figure.tight_layout()
    plt.show()


def masks(done: Any, allowed: Sequence[Any], text_of: Callable[[int], str]) -> None:
    """Each step's likeliest tokens, from the best down, and which of them its mask allows."""
    steps = len(done.token_ids)

    def label(token: int) -> str:
        return repr(text_of(token))[1:-1].replace(" ", "␣")[:9]

    _, axes = plt.subplots(figsize=(0.85 * steps + 1, 3.6))
    most = 6
    for step, (taken, entries, mask) in enumerate(
        zip(done.token_ids, done.logprobs, allowed, strict=True)
    ):
        best = sorted(entries, key=lambda token: entries[token].rank)[:most]
        for place, token in enumerate(best):
            fits = bool(mask[token])
            corner = (step - 0.46, place - 0.42)
            edge = "black" if token == taken else "white"
            colour = "#9ecae1" if fits else "#eceff1"
            axes.add_patch(Rectangle(corner, 0.92, 0.84, facecolor=colour, edgecolor=edge, lw=1.5))
            shade = "black" if fits else "#90979e"
            axes.text(step, place, label(token), ha="center", va="center", color=shade, fontsize=8)
        below = f"{label(taken)}\n{int(mask.sum())}"
        axes.text(step, most - 0.1, below, ha="center", va="top", fontsize=8, weight="bold")
    axes.text(-0.7, most - 0.1, "taken\nallowed", ha="right", va="top", fontsize=8)
    axes.set(xlim=(-0.6, steps - 0.4), ylim=(most + 0.7, -0.6), xticks=[], yticks=range(most))
    axes.set_yticklabels([f"{place + 1}." for place in range(most)])
    axes.set_ylabel("the model's order")
    axes.grid(visible=False)
    axes.legend(
        handles=[Patch(color="#9ecae1", label="allowed"), Patch(color="#eceff1", label="masked")],
        loc="lower center", bbox_to_anchor=(0.5, 1.0), ncol=2, frameon=False,
    )  # fmt: skip
    plt.show()
