"""The pictures of lab 14's notebook; each takes data and returns nothing."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np

from grader.student.notebook import movable, style

if TYPE_CHECKING:
    from nanovllm.performance.interval import Interval
    from nanovllm.performance.profile import RooflinePoint

style()


@cache
def demo() -> ModuleType:
    """The demo's engines and their counts."""
    spec = importlib.util.spec_from_file_location(
        "demo_of_lab14", Path(__file__).with_name("demo.py")
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def target() -> Any:
    """The bundled model."""
    from grader.course.paths import MODELS
    from nanovllm.model.loader import load_model

    return load_model(MODELS / "target")


def waterfall(launches: Mapping[str, float], guess: float | None = None) -> None:
    """Launches a step after each optimisation; what fell since the one before is pale."""
    _, axis = plt.subplots(figsize=(8, 2.8), layout="constrained")
    names, values = list(launches), list(launches.values())
    for place, value in enumerate(values):
        before = values[place - 1] if place else value
        axis.barh(place, before, color="0.88")
        axis.barh(place, value, color="C0")
        axis.text(before, place, f" {value:.0f}", va="center")
    if guess is not None and guess > 0:
        axis.axvline(values[0] * guess / 100, color="C4", ls="--", label="your guess")
        axis.legend(frameon=False, loc="lower right")
    axis.set(yticks=range(len(names)), yticklabels=names, xlabel="launches a decode step")
    axis.set_xlim(0, values[0] * 1.12)
    axis.invert_yaxis()
    plt.show()


def roofline(points: Mapping[str, RooflinePoint], peak: float, bandwidth: float) -> None:
    """Operations under the roof, both axes logarithmic."""
    _, axis = plt.subplots(figsize=(8, 3.6), layout="constrained")
    intensities = np.geomspace(0.05, 100 * peak / bandwidth, 100)
    axis.plot(intensities, np.minimum(peak, intensities * bandwidth) / 1e12, color="black")
    for number, (name, point) in enumerate(points.items()):
        axis.plot(point.intensity, point.reached / 1e12, "o", color=f"C{number}")
        label = f"{name}: {point.share:.0%}"
        below = -3 if (len(points) - number) % 2 else -16  # neighbours are not on one line
        axis.annotate(label, (point.intensity, point.reached / 1e12), (6, below),
                      textcoords="offset points", color=f"C{number}")  # fmt: skip
    axis.set(xscale="log", yscale="log", xlabel="FLOPs a byte", ylabel="TFLOP/s")
    axis.set_xlim(right=100 * peak / bandwidth)
    plt.show()


def timeline(lines: Mapping[str, Sequence[Interval]]) -> None:
    """Who is busy when, one line for each track."""
    _, axis = plt.subplots(figsize=(8, 0.5 * len(lines) + 1.1), layout="constrained")
    for place, (name, intervals) in enumerate(lines.items()):
        for i in intervals:
            axis.barh(place, i.end - i.start, left=i.start, height=0.7, edgecolor="white",
                      color="C0" if "host" in name else "C2")  # fmt: skip
            axis.text((i.start + i.end) / 2, place, i.name, ha="center", va="center", fontsize=8,
                      color="white")  # fmt: skip
    axis.set(yticks=range(len(lines)), yticklabels=list(lines), xlabel="time")
    axis.invert_yaxis()
    plt.show()


def padding(share: Callable[[int], float], most: int = 128) -> None:
    """Which share of a decode's rows is padding, by the number of sequences."""
    _, axis = plt.subplots(figsize=(8, 3), layout="constrained")
    counts = range(1, most + 1)
    axis.step(list(counts), [100 * share(n) for n in counts], where="mid", color="C0")
    axis.set(xlabel="sequences", ylabel="% of rows that are padding", ylim=(0, 60))
    plt.show()


def experts_read(read: Callable[[int, int], float]) -> None:
    """Move k: how many of 64 experts one layer of a step reads, by the number of tokens."""

    def draw(axis: Any, k: int) -> None:
        tokens = [1, 2, 4, 8, 16, 32, 64, 128]
        axis.plot(tokens, [read(n, k) for n in tokens], "o-", color="C0", label="read")
        most = [min(64, n * k) for n in tokens]
        axis.plot(tokens, most, color="0.7", ls="--", label="at most")
        axis.set(xscale="log", xlabel="tokens in the step", ylabel="experts read", ylim=(0, 68))
        axis.legend(frameon=False, loc="lower right", fontsize=7)

    movable(draw, k=[1, 2, 4, 8])


def ranks(work: Mapping[str, Sequence[float]], guess: float | None = None) -> None:
    """What each rank has to do, over the mean, for several placements."""
    _, axis = plt.subplots(figsize=(8, 3.2), layout="constrained")
    width = 0.8 / len(work)
    for number, (name, values) in enumerate(work.items()):
        mean = sum(values) / len(values)
        places = np.arange(len(values)) + number * width
        axis.bar(places, [v / mean for v in values], width, label=name, color=f"C{number}")
    axis.axhline(1, color="black", lw=1)
    if guess is not None and guess > 0:
        axis.axhline(guess, color="C4", ls="--", label="your guess for the busiest")
    axis.set(xlabel="rank", ylabel="work over the mean", xticks=range(len(values)))
    axis.legend(frameon=False)
    plt.show()


def capstone(shares: Mapping[str, float]) -> None:
    """Your engine's counts over the plain engine's; under the dashed line one is enough."""
    _, axis = plt.subplots(figsize=(8, 2.4), layout="constrained")
    names, values = list(shares), [100 * share for share in shares.values()]
    axis.barh(
        names, values, color=["C2" if v <= 75 else "C1" if v > 105 else "0.7" for v in values]
    )
    for place, value in enumerate(values):
        axis.text(value, place, f" {value:.0f} %", va="center")
    axis.axvline(75, color="black", ls="--", lw=1)
    axis.axvline(100, color="black", lw=1)
    axis.set(xlabel="% of the plain engine's", xlim=(0, 130))
    axis.invert_yaxis()
    plt.show()
