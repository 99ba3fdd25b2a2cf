"""What is measured of a way to guess, and a plot of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nanovllm.bench.record import save_figure

NONE = "none"
Ids = list[int]


@dataclass
class Run:
    """What one answer to all prompts took."""

    texts: list[Ids]
    steps: int
    cpu: float
    wall: float
    drafting: float = 0.0  # of cpu, in the draft's forwards
    forwards: int = 0


@dataclass
class Row:
    """A way to guess, on prompts of one kind, in batches of one size: medians over the rounds.

    Without a bound where a policy decides anew each time, or where guesses come for nothing.
    """

    kind: str
    batch: int
    way: str
    tokens: float = 0.0  # a step
    verify: float | None = None  # v
    forwards: float = 0.0  # of the draft, a step
    draft: float = 0.0  # c
    faster: float = 0.0  # processor time
    faster_wall: float = 0.0
    seconds: dict[str, list[float]] = field(default_factory=dict)  # processor time of each round

    @property
    def bound(self) -> float | None:
        """How many times faster it could be, if guessing cost no more than the draft's forwards."""
        if self.verify is None:
            return None
        return self.tokens / (self.verify + self.forwards * self.draft)


def plot(rows: Sequence[Row], path: Path, title: str) -> Path:
    """Times as fast as without guesses, by kind and way; a line where the row's bound is."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    batches = sorted({row.batch for row in rows})
    most = max(sum(row.batch == batch for row in rows) for batch in batches)
    figure, axes = plt.subplots(
        1, len(batches), figsize=(4.2 * len(batches) + 2, 0.24 * most + 1.4), squeeze=False,
        sharex=True, layout="constrained",
    )  # fmt: skip
    for axis, batch in zip(axes.flat, batches, strict=True):
        own = [row for row in rows if row.batch == batch]
        colours = ["#d97706" if "policy" in row.way else "#64748b" for row in own]
        places = range(len(own))
        axis.barh(places, [row.faster for row in own], color=colours, height=0.7)
        axis.set_yticks(places, [f"{row.kind}, {row.way}" for row in own], fontsize=7)
        axis.invert_yaxis()
        for place, row in enumerate(own):
            end = max(row.faster, row.bound or 0.0)
            axis.annotate(f" {row.faster:.2f}", (end, place), va="center", fontsize=7)
            if row.bound is not None:
                axis.vlines(row.bound, place - 0.45, place + 0.45, color="#1e293b")
        axis.axvline(1.0, color="#dc2626", lw=0.8)
        axis.set_xlabel(f"batch {batch}: times as fast", fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    axes.flat[0].set_xlim(0, 1.15 * max(max(row.faster, row.bound or 0.0) for row in rows))
    lines = "red: without guesses; dark lines: the bound by its own costs"
    figure.suptitle(f"{title}\n{lines}", fontsize=10)
    return save_figure(figure, path)
