"""The board of lab 14's race: places from intervals, and a page that explains them."""

from __future__ import annotations

import os
import platform
import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

import jinja2
from rich.table import Table

from grader.grading.race import MANY, ONE, TRACKS, Race, Result
from grader.grading.report_text import clean
from grader.grading.student_seeds import versions

RESOLUTION = 0.0125  # no interval is narrower, to either side: races of one entry differ by that
DRAWS = 200  # of as many rounds, some of them twice
WITHIN = 0.84  # of the draws; two such intervals of what is equal touch in 19 of 20 races
TIMED = {"operations": MANY, "launches a step": ONE}
CONFIRMED = 0.4  # a count's share must be at least so much of the share of processor time
STEPS = 7  # of a waterfall, between its two ends
WIDTH = 620


@dataclass(frozen=True)
class Interval:
    """The median ratio, and what it might be in another race; more is better."""

    low: float
    middle: float
    high: float

    def __str__(self) -> str:
        return f"{self.middle:.2f} ({self.low:.2f}-{self.high:.2f})"


@dataclass(frozen=True)
class Standing:
    """An entry on the board; without places where it is out of the race."""

    result: Result
    intervals: dict[str, Interval]
    places: dict[str, int]

    @property
    def shares(self) -> dict[str, float]:
        """The counts over the plain engine's."""
        own, plain = self.result.counts, self.result.plain
        return {name: own.get(name, 0) / plain[name] if plain[name] else 1.0 for name in plain}

    @property
    def milliseconds(self) -> dict[str, float]:
        """Processor time of a turn."""
        return {track: 1000 * statistics.median(s) for track, s in self.result.seconds.items() if s}

    @property
    def doubted(self) -> bool:
        """Its own process counted less than the clock outside, or the kind of work, can explain."""
        return any(
            self.shares[name] < CONFIRMED / self.intervals[track].middle
            for name, track in TIMED.items()
            if name in self.shares
        )

    @property
    def waterfall(self) -> list[tuple[str, float, float, str]]:
        """Label, left end, right end and number of each bar, from the plain engine to the entry."""
        own, plain = self.result.names, self.result.plain_names
        change = {n: own.get(n, 0) - plain.get(n, 0) for n in {**own, **plain}}
        order = sorted((n for n in change if change[n]), key=lambda n: (-abs(change[n]), n))
        steps = [(name, change[name]) for name in order[:STEPS]]
        if order[STEPS:]:
            steps.append((f"{len(order) - STEPS} others", sum(change[n] for n in order[STEPS:])))
        at = sum(plain.values())
        bars, scale = [("plain engine", 0.0, float(at), f"{at}")], [at]
        for name, difference in steps:
            bars.append((name, at, at + difference, f"{difference:+d}"))
            at += difference
            scale.append(at)
        bars.append(("this entry", 0.0, float(at), f"{at}"))
        unit = WIDTH / max(1, *scale)
        return [(n, min(a, b) * unit, max(a, b) * unit, text) for n, a, b, text in bars]


def interval(rounds: Sequence[Sequence[float]]) -> Interval:
    """The median of all turns, and where it lies when rounds are drawn anew from these (bootstrap).

    Rounds are drawn, not turns: those of one round have two processes in common.
    """
    middle, draw = statistics.median(chain.from_iterable(rounds)), random.Random(0)
    draws = (draw.choices(rounds, k=len(rounds)) for _ in range(DRAWS))
    medians = sorted(statistics.median(chain.from_iterable(drawn)) for drawn in draws)
    low, high = (medians[round((DRAWS - 1) * (1 + side * WITHIN) / 2)] for side in (-1, 1))
    return Interval(min(low, middle * (1 - RESOLUTION)), middle,
                    max(high, middle * (1 + RESOLUTION)))  # fmt: skip


def standings(results: Iterable[Result]) -> list[Standing]:
    """By place in the first track; who is out comes last, by name."""
    found = []
    for one in results:
        racing = () if one.problem else TRACKS
        found.append(Standing(one, {track: interval(one.ratios[track]) for track in racing}, {}))
    for track in TRACKS:
        _place([one for one in found if one.intervals], track)
    return sorted(found, key=lambda s: (not s.places, s.places.get(MANY), s.result.student))


def _place(racing: list[Standing], track: str) -> None:
    """Ranked by the lower ends; a new place begins where an interval overlaps none above it."""
    lowest, place = float("inf"), 0
    ranked = sorted(racing, key=lambda s: -s.intervals[track].low)
    for number, one in enumerate(ranked, 1):
        if number == 1 or one.intervals[track].high < lowest:
            place = number
        lowest = one.intervals[track].low
        one.places[track] = place


def facts(race: Race) -> dict[str, str]:
    """Machine, versions and seed, without which a ratio says little."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    names = [row.partition(":")[2].strip() for row in text.splitlines() if "model name" in row]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "day": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{names[0] if names else platform.machine()}, {os.cpu_count()} processors, "
        f"{memory:.0f} GiB, load {os.getloadavg()[1]:.1f}",
        "versions": ", ".join(f"{name} {number}" for name, number in versions().items()),
        "seed": race.seed,
        "rounds": str(race.rounds),
        "sandbox": race.sandbox.level,
    }


def page(board: list[Standing], about: dict[str, str]) -> str:
    """The board as one file of HTML."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent / "templates")
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True)
    environment.filters["clean"] = clean
    ends = [e for s in board for i in s.intervals.values() for e in (i.low, i.high)]
    scale = (min([0.9, *ends]) - 0.05, max([1.1, *ends]) + 0.05)
    return environment.get_template("race.html.j2").render(
        board=[s for s in board if s.places], out=[s for s in board if not s.places], about=about,
        tracks=TRACKS, width=WIDTH, at=lambda x: 200 * (x - scale[0]) / (scale[1] - scale[0]),
    )  # fmt: skip


def table(board: list[Standing]) -> Table:
    """The board for a terminal."""
    shown = Table("entry", *(f"{track}: place, ratio" for track in TRACKS), "why it is out")
    for one in board:
        cells = [f"{one.places[t]}. {one.intervals[t]}" if one.places else "" for t in TRACKS]
        shown.add_row(one.result.student, *cells, one.result.problem)
    return shown
