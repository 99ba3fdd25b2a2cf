"""The model and the pictures of lab 09's notebook; each picture takes data, returns nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from grader.course.paths import MODELS
from grader.student.notebook import movable, style
from nanovllm.quantization.grid import Grid, QuantizedWeight
from nanovllm.quantization.held_out import RowsAttend, held_out_rows

if TYPE_CHECKING:
    from nanovllm.model.transformer import Transformer

style()
ROWS = 4  # held-out rows that pictures judge by: half a second a model
SPAN = 32  # tokens that share the scale of a channel: as many as a head has dimensions
WALK = "layers.2.self_attn.o_proj"  # its first 64 inputs are two heads
BYTES_S, FLOPS = 3.35e12, 989e12  # of an H100
ROW = "layers.2.self_attn.q_proj", 191  # of this linear this row is looked at
SHOWN = 96  # columns
AWQ = "layers.1.mlp.up_proj"
PLACES = {  # which dimensions of K or V [rows, spans, SPAN, G, D] share a scale
    "a token and head": (4,),
    "a channel, 32 tokens": (2,),
    "a head, all tokens": (1, 2, 4),
}
Change = Callable[[Tensor], Tensor]


def load() -> Transformer:
    """The bundled model, in float32."""
    from nanovllm.model.loader import load_model

    torch.set_num_threads(1)  # small products: more threads only wait for one another
    return load_model(MODELS / "target", torch.float32)


@torch.inference_mode()
def loss(model: Transformer, attend: Any = None, count: int = ROWS) -> float:
    """Loss of a model on the first held-out rows."""
    rows = held_out_rows(count)
    positions = torch.arange(rows.shape[1] - 1).repeat(count)
    hidden = model(rows[:, :-1].flatten(), positions, attend or RowsAttend(count))
    return float(F.cross_entropy(model.logits(hidden), rows[:, 1:].flatten()))


@torch.inference_mode()
def inputs_of(model: Transformer, name: str, count: int = ROWS) -> Tensor:
    """What one linear of the model multiplies in held-out rows [n, K]."""
    found: list[Tensor] = []
    hook = model.get_submodule(name).register_forward_pre_hook(lambda _, x: found.append(x[0]))
    loss(model, count=count)
    hook.remove()
    return found[0]


def stored_bits(model: Transformer) -> float:
    """Bits stored for each weight of its quantized linears."""
    from nanovllm.quantization.linear import linears

    found = [linear for _, linear in linears(model)]
    weights = sum(linear.in_features * linear.out_features for linear in found)
    return sum(linear.stored_bits for linear in found) / weights


def sweep(found: Mapping[int, Mapping[str, tuple[float, float]]], guess: float | None) -> None:
    """Loss over stored bits: a curve for each number of bits, a point for each group size."""
    _, axis = plt.subplots(figsize=(8, 3.6), layout="constrained")
    for color, (bits, points) in zip(("C1", "C0", "C2"), found.items(), strict=True):
        stored, losses = zip(*points.values(), strict=True)
        axis.plot(stored, losses, "o-", color=color, label=f"{bits} bits")
        for size, x, y in zip(points, stored, losses, strict=True):
            axis.annotate(size, (x, y), (0, 6), textcoords="offset points", ha="center",
                          fontsize=8, color=color)  # fmt: skip
    if guess is not None:
        axis.axvline(guess, ls=":", color="gray", label="your guess for 4 bits, groups of 32")
    axis.margins(y=0.1)
    axis.set(yscale="log", xlabel="bits stored for each weight", ylabel="loss above exact weights")
    axis.set_title("a point's number: its group size", fontsize=9)
    axis.legend(loc="lower left", frameon=False)
    plt.show()


def words(layouts: Mapping[str, Callable[[QuantizedWeight], Tensor]], size: int = 16) -> None:
    """Which word of a file (shade) and which of its eight places (number) has each weight."""
    _, axes = plt.subplots(1, len(layouts), figsize=(4.1 * len(layouts), 4.3), layout="constrained")
    numbers = torch.arange(size * size).view(size, size)  # each weight's own; two codes of 4 bits
    grid = Grid(4, torch.ones(size, 1), torch.zeros(size, 1, dtype=torch.uint8),
                torch.zeros(size, dtype=torch.long))  # fmt: skip
    shifts = 4 * torch.arange(8)
    for axis, (name, layout) in zip(axes, layouts.items(), strict=True):
        halves = [
            layout(QuantizedWeight(codes.to(torch.uint8), grid)).flatten().long()[:, None] >> shifts
            for codes in (numbers % 16, numbers // 16)
        ]
        lying = ((halves[0] & 15) + 16 * (halves[1] & 15)).flatten()  # in the file's order
        place = lying.argsort().view(size, size)
        axis.imshow(place // 8, cmap="Blues", vmin=-6, vmax=2.2 * len(lying) / 8)
        for (row, column), where in np.ndenumerate(place.numpy()):
            axis.text(column, row, where % 8, ha="center", va="center", fontsize=7)
        first = np.argwhere(place.numpy() < 8)
        low, high = first.min(axis=0) - 0.5, first.max(axis=0) + 0.5
        axis.add_patch(plt.Rectangle(low[::-1], *(high - low)[::-1], fill=False, ec="C1", lw=2))
        axis.set(title=name, xlabel="column k", xticks=[0, 7, 8, 15], yticks=[0, 7, 8, 15])
        axis.grid(visible=False)
    axes[0].set_ylabel("row n")
    plt.show()


class Walk:
    """One linear of the model, and what its inputs say of errors."""

    def __init__(self, model: Transformer, grid_of: Callable[[Tensor], Grid]) -> None:
        self.weight = model.get_submodule(WALK).weight.detach()
        self.grid = grid_of(self.weight)
        inputs = inputs_of(model, WALK).double()
        self.hessian = 2 * inputs.T @ inputs / len(inputs)
        damped = self.hessian + 0.01 * self.hessian.diagonal().mean() * torch.eye(len(self.hessian))
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
        self.upper = torch.linalg.cholesky(inverse, upper=True)  # U: the inverse of H is U^T U

    def run(self, step: Callable[[Tensor, int], None]) -> Tensor:
        """The weights [K + 1, N, K] before and after each column, by `step(weights, column)`."""
        weights, seen = self.weight.double().clone(), []
        for column in range(weights.shape[1]):
            seen.append(weights.clone())
            step(weights, column)
        return torch.stack([*seen, weights])

    def error(self, weights: Tensor) -> Tensor:
        """Mean square error of the outputs, for each weight [.., N, K] on the way."""
        change = weights - self.weight
        return ((change @ self.hessian) * change).sum(dim=(-2, -1)) / 2


def walk(walked: Walk, runs: Mapping[str, Tensor], row: int = 5) -> None:
    """How a row's weights change column by column, and how the output's error grows."""
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.9), layout="constrained")
    steps = walked.grid.column_scales()[row]
    ends = {name: walked.error(weights) for name, weights in runs.items()}
    for axis, (name, weights) in zip(axes, runs.items(), strict=False):
        change = ((weights[:, row] - walked.weight[row]) / steps)[1:65, :64]
        image = axis.imshow(change, cmap="PuOr", vmin=-0.6, vmax=0.6)
        axis.set_title(f"{name}: row {row}, first 64 columns", fontsize=9)
        axis.axvline(31.5, color="0.4", ls=":", lw=1)
        axis.set(xlabel="column", ylabel="columns rounded so far")
        axis.grid(visible=False)
        left = 100 * ends[name] / ends["RTN"][-1]
        axes[2].plot(left, label=f"{name}: {left[-1]:.0f} %")
    figure.colorbar(image, ax=axes[1], label="change, in steps of the grid")
    axes[2].set(xlabel="columns rounded so far", ylabel="% of RTN's error of the output")
    axes[2].legend(frameon=False)
    plt.show()


def ratios(
    models: Mapping[str, Transformer],
    rounded: Callable[[Tensor], Tensor],
    search: Callable[[Tensor, Tensor], Tensor],
) -> None:
    """The error of one linear's output over AWQ's ratio; and the sizes of channels, and scales."""
    _, axes = plt.subplots(1, 3, figsize=(12, 3.2), layout="constrained")
    for number, (name, model) in enumerate(models.items()):
        inputs, weight = inputs_of(model, AWQ, 2), model.get_submodule(AWQ).weight.detach()
        sizes, errors = inputs.abs().mean(dim=0), []
        for ratio in torch.arange(20) / 20:
            scale = sizes**ratio
            scale /= (scale.max() * scale.min()).sqrt()
            off = rounded(weight * scale) / scale - weight
            errors.append(float((inputs @ off.T).square().sum()))
        found = search(weight, inputs)
        best = float(np.polyfit(sizes.log(), found.log(), 1)[0])
        left = 100 * np.array(errors) / errors[0]
        axes[0].plot(np.arange(20) / 20, left, "o-", ms=3, label=name)
        axes[0].plot([best], [np.interp(best, np.arange(20) / 20, left)], "*", ms=14,
                     color=f"C{number}")  # fmt: skip
        axes[1 + number].plot(sizes, ".", color="0.6", label="mean of |x|")
        axes[1 + number].plot(found, ".", color=f"C{number}", label="your scale")
        axes[1 + number].set(yscale="log", xlabel="channel", ylim=(0.1, 50))
        axes[1 + number].set_title(name, fontsize=9)
        axes[1 + number].legend(frameon=False)
    axes[0].set(xlabel="r (star: your scale)", ylabel="% of RTN's error of the output")
    axes[0].legend(frameon=False)
    plt.show()


def levels(
    weight: Tensor,
    fisher: Tensor,
    grid_of: Callable[[Tensor, int, int], QuantizedWeight],
    table_of: Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]],
) -> None:
    """Move bits and group size: a row's weights [1, K], RTN's levels and those of a table."""
    tables = {bits: table_of(weight, fisher, 2**bits) for bits in (2, 3, 4)}  # does not move
    sizes = (90 * fisher[0] / fisher.quantile(0.99)).clamp(2, 90)
    names = {"whole row": weight.shape[1]}

    def draw(axis: Any, group: int | str, bits: int) -> None:
        rounded, (table, codes) = grid_of(weight, bits, names.get(group, group)), tables[bits]
        grid, all_codes = rounded.grid, torch.arange(rounded.grid.num_codes)
        values = (all_codes[:, None] - grid.column_zeros()) * grid.column_scales()  # [codes, K]
        shown = slice(0, SHOWN)
        axis.hlines(table[0], 0, SHOWN, color="C1", lw=1, label="SqueezeLLM")
        axis.plot(values.T[shown], color="C0", lw=0.8, alpha=0.7)
        axis.scatter(range(SHOWN), weight[0, shown], sizes[shown], color="black", lw=0, zorder=3)
        errors = [
            float((fisher * (of - weight).square()).sum())
            for of in (rounded.dequantize(), table.gather(1, codes.long()))
        ]
        error = f"{errors[1] / errors[0]:.0%} of RTN's"
        axis.set_xlabel(f"column\ntable's error: {error}", fontsize=8)
        if axis.get_subplotspec().is_first_col():
            axis.set_ylabel("weight")
        axis.set_ylim(1.15 * float(weight.min()), 1.15 * float(weight.max()))
        axis.grid(visible=False)

    print("black: weights, larger where the loss is sensitive; blue: RTN's levels; orange: table's")
    movable(draw, group=[16, 32, 64, 128, "whole row"], bits=[2, 3, 4])


def methods(found: Mapping[str, Mapping[Any, tuple[float, float]]]) -> None:
    """Loss over stored bits, a curve for each method."""
    _, axis = plt.subplots(figsize=(8, 3.8), layout="constrained")
    for (name, points), mark in zip(found.items(), "osD^v", strict=False):
        stored, losses = zip(*sorted(points.values()), strict=True)
        axis.plot(stored, losses, mark + "-", label=name)
        for label, place in points.items() if name.startswith("RTN") else ():
            axis.annotate(label, place, (6, 3), textcoords="offset points", fontsize=8)
    axis.set_title("labels: RTN's group size; AWQ and GPTQ have groups of 64", fontsize=9)
    axis.set(yscale="log", xlabel="bits stored for each weight", ylabel="loss above exact weights")
    axis.margins(0.08, 0.1)
    axis.legend(frameon=False)
    plt.show()


def gain_of_w4a16(loads: Callable[[int], float], guess: float | None) -> None:
    """How many times as fast 4 bits are as 16 on a large GPU, over the rows of the input."""
    rows, seconds = [1, 4, 16, 32, 64, 96, 128, 192, 256, 384, 512], {}
    ways = {"each word loaded once": lambda _: 1.0, "words as your kernel loads them": loads}
    arithmetic = [2 * count / FLOPS for count in rows]  # a weight is used once for each row
    plain = [max(2 / BYTES_S, slow) for slow in arithmetic]
    for name, times in ways.items():
        moved = [4.5 / 8 * times(count) / BYTES_S for count in rows]
        seconds[name] = [max(pair) for pair in zip(moved, arithmetic, strict=True)]
    _, axis = plt.subplots(figsize=(8, 3), layout="constrained")
    for (name, found), line in zip(seconds.items(), ("o--", "s-"), strict=True):
        axis.plot(rows, [a / b for a, b in zip(plain, found, strict=True)], line, ms=4, label=name)
    axis.axhline(1, color="black", lw=1)
    if guess is not None and guess > 0:
        axis.axvline(guess, ls=":", color="C2", label="your guess")
    axis.set_xscale("log", base=2)
    axis.set_xticks([2**n for n in range(10)], [2**n for n in range(10)])
    axis.set(xlabel="rows of the input (tokens in a step)", ylabel="times as fast", ylim=(0, 4))
    axis.legend(frameon=False, loc=(0.02, 0.35))
    plt.show()


def smoothed(before: Transformer, after: Transformer, found: Mapping[str, float]) -> None:
    """The largest value of each channel of inputs and weights, and the loss of each way."""
    _, axes = plt.subplots(1, 3, figsize=(12, 3.2), width_ratios=(3, 3, 2), layout="constrained")
    for axis, name, model in zip(axes, ("planted", "smoothed"), (before, after), strict=False):
        weight = model.get_submodule(AWQ).dequantize()
        axis.plot(inputs_of(model, AWQ).abs().amax(dim=0), ".", color="C0", label="inputs")
        axis.plot(weight.abs().amax(dim=0), ".", color="C1", label="weights")
        axis.set(yscale="log", xlabel="channel", ylim=(1e-3, 1e3))
        axis.set_title(f"outliers, {name}", fontsize=9)
    axes[0].set_ylabel("largest value of a channel")
    axes[0].legend(loc=(0.3, 0.25), frameon=False)
    costs = [max(cost, 0.0) for cost in found.values()]  # four rows: 0 may come out as -0.0001
    axes[2].bar_label(axes[2].barh(range(len(costs)), costs, color="C2"), fmt=" %.4f", fontsize=8)
    axes[2].set_yticks(range(len(found)), list(found))
    axes[2].set(xlabel="loss above exact", xlim=(0, 1.4 * max(costs)))
    axes[2].invert_yaxis()
    axes[2].grid(axis="y", visible=False)
    plt.show()


def channels(weight: Tensor) -> Tensor:
    """Every column of a weight [N, K] is a channel of its own."""
    return torch.arange(weight.shape[1])


class _Changed(RowsAttend):
    """Attends to K and V as two functions of [rows, spans, SPAN, G, D] leave them."""

    def __init__(self, on_k: Change, on_v: Change) -> None:
        super().__init__(ROWS)
        self.on_k, self.on_v = on_k, on_v

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (
            change(x.unflatten(0, (ROWS, -1, SPAN))).flatten(0, 2)
            for change, x in ((self.on_k, k), (self.on_v, v))
        )
        return super().__call__(layer, q, k, v)


def same(x: Tensor) -> Tensor:
    """K or V left as they are."""
    return x


def loss_with(model: Transformer, on_k: Change, on_v: Change) -> float:
    """Loss above that with exact K and V."""
    return loss(model, _Changed(on_k, on_v)) - loss(model)


class _Cached(RowsAttend):
    """Attends to K and V as a cache gives them back."""

    def __init__(self, cache: Any) -> None:
        super().__init__(ROWS)
        self.cache, self.blocks = cache, torch.arange(cache.num_blocks)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.cache.write(layer, k, v, torch.arange(len(k)))
        k, v = (x.flatten(0, 1)[: len(q)] for x in self.cache.read(layer, self.blocks))
        return super().__call__(layer, q, k, v)


def loss_in_cache(model: Transformer, cache_class: Any, kind: str) -> float:
    """Loss with K and V in a cache, above that with exact ones."""
    cache = cache_class(model.config, ROWS * 512 // 16, kind=kind)
    return loss(model, _Cached(cache)) - loss(model)


@torch.inference_mode()
def keys_and_values(model: Transformer, layer: int = 2, tokens: int = 96) -> None:
    """K and V of the first tokens of a row, a column for each channel of each head."""
    seen: dict[int, tuple[Tensor, Tensor]] = {}

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seen[layer] = k, v
        return RowsAttend(1)(layer, q, k, v)

    model(held_out_rows(1)[0, :tokens], torch.arange(tokens), attend)
    figure, axes = plt.subplots(1, 2, figsize=(12, 3.4), sharey=True, layout="constrained")
    for axis, name, x in zip(axes, ("K", "V"), seen[layer], strict=True):
        largest = float(x.abs().quantile(0.995))
        image = axis.imshow(x.flatten(1), cmap="PuOr", vmin=-largest, vmax=largest, aspect="auto")
        figure.colorbar(image, ax=axis)
        axis.set(title=f"{name}, layer {layer}", xlabel="channel", xticks=range(0, 129, 32))
        axis.grid(visible=False)
    axes[0].set_ylabel("token")
    plt.show()


def scales_of_cache(found: Mapping[str, Sequence[float]], bits: int) -> None:
    """Loss with K, V or both in few bits, for each place of the scale."""
    _, axis = plt.subplots(figsize=(8, 3.2), layout="constrained")
    places = np.arange(len(found))
    for number, (name, color) in enumerate((("K", "C0"), ("V", "C1"), ("K and V", "0.5"))):
        heights = [losses[number] for losses in found.values()]
        bars = axis.bar(places + 0.27 * (number - 1), heights, 0.25, color=color, label=name)
        axis.bar_label(bars, fmt="%.3f", padding=2, fontsize=8)
    axis.set_xticks(places, [f"a scale for {name}" for name in found])
    axis.set_yscale("symlog", linthresh=0.01)
    axis.set(ylabel="loss above exact K and V\n(logarithmic above 0.01)", ylim=(0, 10))
    axis.set_title(f"{bits} bits", fontsize=9)
    axis.legend(loc="upper left", frameon=False)
    axis.grid(axis="x", visible=False)
    plt.show()


def capacity(found: Mapping[str, tuple[int, float]], guess: float | None) -> None:
    """Tokens that a mebibyte of cache holds, by kind, with the loss that each kind costs."""
    _, axis = plt.subplots(figsize=(8, 2.6), layout="constrained")
    tokens = [2**20 // size for size, _ in found.values()]
    bars = axis.barh(range(len(found)), tokens, color=["0.6", *["C0"] * (len(found) - 1)])
    labels = [
        f" {count:,} tokens, {size:,} bytes each; loss {cost:+.4f}"
        for count, (size, cost) in zip(tokens, found.values(), strict=True)
    ]
    axis.bar_label(bars, labels, fontsize=8, bbox={"fc": "white", "ec": "none", "pad": 0})
    if guess is not None and guess > 0:
        axis.axvline(2**20 / guess, ls=":", color="C2")
        axis.text(2**20 / guess, -0.75, "your guess for int4", color="C2", fontsize=8, ha="center")
    axis.set_yticks(range(len(found)), list(found))
    axis.set(xlim=(0, 1.7 * max(tokens)), xlabel="tokens in one MiB")
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    plt.show()
