"""`lab race`: an entry of lab 14's race through its gate, and its counts; only a race times it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table

from grader.checks import race_draws
from grader.checks.race_runs import Runs
from grader.checks.run_checks import fresh_processes
from grader.course.lab_toml import Lab

Task = dict[str, Any]


@dataclass(frozen=True)
class Stand:
    """problem: why the gate is shut, "" where it is open; counts by name: plain engine's, own."""

    problem: str
    counts: dict[str, tuple[int, int]]


def stand(lab: Lab, home: Path, seed: str) -> Stand:
    """Run the gate and count, beside the plain engine, each in a process of its own.

    home: the folder that the entry's package is in.
    """
    last = race_draws.timed(seed), {**race_draws.many(seed, 0), "count": True}
    pairs = [*race_draws.gate(seed), last]
    tasks = [task for pair in pairs for task in pair]
    both = [(lab.key, home, [{**t, "entry": entry} for t in tasks]) for entry in (True, False)]
    own, plain = fresh_processes(_run, both)
    for number, (load, run) in enumerate(pairs):
        place = f"model {number + 1} of {len(pairs)} ({load['model']['family']})"
        for found in own[2 * number : 2 * number + 2]:
            if "raised" in found:
                return Stand(f"{place}: your engine raised {found['raised']}", {})
        texts = own[2 * number + 1]["texts"], plain[2 * number + 1]["texts"]
        if what := race_draws.disagreement(load, run, *texts, partial(_near, lab, home)):
            return Stand(f"{place}, {what}", {})
    counts = plain[-1]["counts"], own[-1]["counts"]
    return Stand("", {name: (counts[0][name], counts[1][name]) for name in counts[0]})


def table(found: Stand) -> Table:
    """The counts of 64 requests, side by side."""
    shown = Table("64 requests at once", "plain engine", "yours", "share")
    for name, (plain, own) in found.counts.items():
        shown.add_row(name, f"{plain:,}", f"{own:,}", f"{own / plain:.0%}" if plain else "")
    for column in shown.columns[1:]:
        column.justify = "right"
    return shown


def _run(work: tuple[str, Path, list[Task]]) -> list[Task]:
    """In a process of its own: this lab from `home`, the others as its checks have them."""
    os.environ["NANOVLLM_CODE"], home, tasks = work
    os.environ["NANOVLLM_MINE"] = str(home)
    runs = Runs()
    return [runs.do(task) for task in tasks]


def _near(lab: Lab, home: Path, task: Task) -> bool:
    return next(fresh_processes(_run, [(lab.key, home, [task])]))[0] == {"near": True}
