"""What is kept of a run: JSON with the machine, the settings and every round; a table; a plot."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanovllm.bench.machine import describe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_OURS, _OTHERS = "#d97706", "#64748b"


def record(kind: str, settings: Mapping[str, Any], results: Mapping[str, Any]) -> dict[str, Any]:
    """A run as one object."""
    return {
        "kind": kind,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe(),
        "settings": dict(settings),
        "results": dict(results),
    }


def save(found: Mapping[str, Any], path: Path) -> Path:
    """Write a record; where it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return path


def save_figure(figure: "Figure", path: Path) -> Path:
    """Write a picture and let go of it; where it is."""
    from matplotlib import pyplot

    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return path


def bar_plot(
    path: Path,
    title: str,
    panels: Mapping[str, Mapping[str, Sequence[float]]],
    ours: str | tuple[str, ...],
) -> Path:
    """One panel a figure, one bar a contestant: the median, and each round as a dot.

    ours: how the names begin that stand out.

    The first panel has all contestants; a further one may lack some, and then shows the rest alone.
    """
    from statistics import median

    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    alike = len({frozenset(values) for values in panels.values()}) == 1
    columns = min(2, len(panels)) if alike else 1
    heights = [0.42 * len(values) + 0.9 for values in list(panels.values())[::columns]]
    figure, axes = plt.subplots(
        len(heights), columns, figsize=(4.6 * columns + 1.6, sum(heights) + 0.7),
        height_ratios=heights, squeeze=False, sharey=alike, layout="constrained",
    )  # fmt: skip
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    order = list(next(iter(panels.values())))
    for axis, (label, values) in zip(axes.flat, panels.items(), strict=False):
        names = [name for name in order if name in values]
        middles = [median(values[name]) for name in names]
        colours = [_OURS if name.startswith(ours) else _OTHERS for name in names]
        axis.barh(names, middles, color=colours, height=0.62)
        axis.set_ylim(len(names) - 0.5, -0.5)  # the first on top
        for place, (name, middle) in enumerate(zip(names, middles, strict=True)):
            axis.plot(values[name], [place] * len(values[name]), ".", color="#1e293b", ms=4)
            axis.annotate(
                f" {_number(middle)}", (max(values[name]), place), va="center", fontsize=9
            )
        axis.set_xlabel(label)
        axis.set_xlim(0, 1.18 * max(max(each) for each in values.values()))
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=11)
    return save_figure(figure, path)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
