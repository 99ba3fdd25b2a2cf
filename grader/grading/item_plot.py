"""The item analysis as a table and as a picture for the next lecture."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from grader.grading.item_analysis import Analysis, Item

TOP = 8
COLOURS = {"few": "#c2452d", "some": "#d9a441", "most": "#3c7d54"}
WIDTH = 60


def tables(found: Analysis) -> list[Table]:
    """Checks with difficulty and discrimination, then the most frequent mistakes."""
    checks = Table("task", "check", "passed", "item-rest r", "remark")
    checks.title = f"{found.lab.key} {found.lab.title}: {found.students} submissions"
    for item in found.items:
        r = "-" if item.discrimination is None else f"{item.discrimination:+.2f}"
        passed = f"{item.passed}/{item.students} ({100 * item.difficulty:.0f} %)"
        checks.add_row(str(item.task), escape(item.title), passed, r, item.remark)
    slips = Table("students", "task", "mistake", title="Named mistakes")
    for slip in found.slips:
        slips.add_row(str(slip.students), str(slip.task), escape(slip.says))
    if not found.slips:
        slips.add_row("-", "-", "no mistake of the course's bank was recognised")
    return [checks, slips]


def picture(found: Analysis, path: Path) -> None:
    """Left: the share that passed each check, by task; right: the mistakes made most."""
    from matplotlib.figure import Figure

    height = max(4.0, 0.24 * len(found.items) + 1.6)
    figure = Figure(figsize=(14, height), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.2, 1))
    _difficulty(left, found)
    _mistakes(right, found)
    figure.suptitle(f"{found.lab.key} {found.lab.title}: {found.students} submissions")
    figure.savefig(path, dpi=110)


def _difficulty(axes: Any, found: Analysis) -> None:
    places, last = [], None
    for item in found.items:
        gap = 1.6 if last not in (None, item.task) else 1.0
        places.append((places[-1] if places else 0.0) + gap)
        last = item.task
    axes.barh(places, [100 * item.difficulty for item in found.items],
              color=[_colour(item) for item in found.items], height=0.75)  # fmt: skip
    labels = [f"{item.task}  {textwrap.shorten(item.title, WIDTH)}" for item in found.items]
    axes.set_yticks(places, labels, fontsize=8)
    for place, item in zip(places, found.items, strict=True):
        r = "" if item.discrimination is None else f"r {item.discrimination:+.2f}"
        axes.text(101.5, place, r, va="center", fontsize=8, color="#555555")
    axes.set_ylim(places[-1] + 1, places[0] - 1)
    axes.set_xlim(0, 113)
    axes.set_xticks([0, 25, 50, 75, 100])
    axes.set_xlabel("students who passed the check, % (r: correlation with the rest of the lab)")
    axes.spines[["top", "right"]].set_visible(False)


def _mistakes(axes: Any, found: Analysis) -> None:
    top = found.slips[:TOP]
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title("What the class got wrong most", fontsize=11)
    if not top:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "no named mistake was recognised", ha="center", va="center")
        return
    axes.barh(range(len(top)), [slip.students for slip in top], color="#4a6fa5", height=0.35)
    for place, slip in enumerate(top):
        text = textwrap.fill(f"{slip.students} x task {slip.task}: {slip.says}", 78)
        axes.text(top[0].students / 100, place - 0.24, text, va="bottom", fontsize=8)
    axes.set_ylim(max(len(top), 8) - 0.5, -0.9)  # a few bars are no thicker than many
    axes.set_yticks([])
    axes.set_xlabel("students")
    axes.xaxis.get_major_locator().set_params(integer=True)


def _colour(item: Item) -> str:
    kind = "few" if item.difficulty < 0.5 else "some" if item.difficulty < 0.8 else "most"
    return COLOURS[kind]
