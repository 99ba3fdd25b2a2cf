"""Lab 14's race of ten entries, run twice: `python -m benchmarks.race_twice --out DIR`.

The reference, three right variants, the plain engine twice, three quicker entries and one that is
5 % slower race under two seeds: how far the medians move, and whether places are equal. Then the
plain engine and the slower one alone, `--pairs` times each: how often their intervals are apart.
"""

import argparse
import secrets
import sys
import tempfile
from dataclasses import asdict
from itertools import chain, product
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rich.console import Console

from grader.authoring import variants
from grader.grading.class_submissions import discover
from grader.grading.race import MANY, ONE, TRACKS, Race
from grader.grading.race_board import Standing, interval, standings
from grader.sandbox.sandbox import Sandbox
from nanovllm.bench import tables
from nanovllm.bench.machine import require_quiet
from nanovllm.bench.record import record, save
from tests.race_class import LAB, RIGHT, write_entry

ENTRIES = ("as_is", "as_is_again", "direct", "fused", "fused_and_direct", "slower_by_5")
Pairs = dict[str, list[list[list[float]]]]  # ratios by entry and track, run, round
PAIR, TIMED = ("as_is", "slower_by_5"), (MANY, ONE)


def write_class(folder: Path) -> None:
    """Ten folders, as students hand them in."""
    write_entry(folder)
    for path in RIGHT:
        if path.stem in ENTRIES:
            write_entry(folder, path)
    for variant in variants.kept(LAB):
        package = folder / variant.stem / "nanovllm"
        package.mkdir(parents=True)
        variants.write(variant, LAB, package)


def run(folder: Path, sandbox: Sandbox, rounds: int) -> list[Standing]:
    """One race, with a seed of its own."""
    race, results = Race(LAB, secrets.token_hex(8), sandbox, rounds), []
    for entry in discover(folder):
        results.append(race.run(entry))
        said = results[-1].problem or f"{median(chain.from_iterable(results[-1].ratios[MANY])):.3f}"
        print(f"  {entry.student}: {said}", file=sys.stderr, flush=True)
    return standings(results)


def _shown(rounds: list[list[float]]) -> list[list[float]]:
    """Ratios as they are recorded."""
    return [[round(ratio, 4) for ratio in turns] for turns in rounds]


def compare(boards: list[list[Standing]]) -> dict[str, Any]:
    """By track: each entry's median and place in both races."""
    first, second = ({one.result.student: one for one in board} for board in boards)
    found: dict[str, Any] = {}
    for track in TRACKS:
        rows = {}
        for name, one in first.items():
            both = one, second[name]
            rows[name] = {
                "medians": [s.intervals[track].middle for s in both],
                "intervals": [asdict(s.intervals[track]) for s in both],
                "ratios": [_shown(s.result.ratios[track]) for s in both],
                "places": [s.places[track] for s in both],
            }
        moved = {n: abs(b / a - 1) for n, r in rows.items() for a, b in [r["medians"]]}
        found[track] = {
            "entries": rows, "moved_most": max(moved.values()),
            "other_places": [n for n, r in rows.items() if len(set(r["places"])) > 1],
        }  # fmt: skip
    return found


def alone(folder: Path, sandbox: Sandbox, runs: int, rounds: int) -> Pairs:
    """The ratios of each run of the pair, by entry and track."""
    found: Pairs = {f"{n} {track}": [] for n in PAIR for track in TIMED}
    for number in range(runs):
        race = Race(LAB, secrets.token_hex(8), sandbox, rounds)
        for entry in discover(folder):
            result = race.run(entry)
            for track in TIMED:
                found[f"{entry.student} {track}"].append(_shown(result.ratios[track]))
        print(f"  pair {number + 1}", file=sys.stderr, flush=True)
    return found


def apart(found: Pairs, track: str) -> float:
    """Of all pairs of a run of the one and a run of the other, the share that does not touch."""
    quick, slow = ([interval(rounds) for rounds in found[f"{name} {track}"]] for name in PAIR)
    return fmean(one.low > other.high for one, other in product(quick, slow))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=10, help="runs of each of the two")
    parser.add_argument("--anyway", action="store_true", help="on a busy machine, too")
    given = parser.parse_args()
    require_quiet(given.anyway)
    with tempfile.TemporaryDirectory() as name, Sandbox.open() as sandbox:
        class_, pair = Path(name) / "class", Path(name) / "pair"
        write_class(class_)
        for path in RIGHT:
            if path.stem in PAIR:
                write_entry(pair, path)
        found: dict[str, Any] = compare([run(class_, sandbox, given.rounds) for _ in range(2)])
        found["pair"] = alone(pair, sandbox, given.pairs, given.rounds)
    found["pairs_apart"] = {track: apart(found["pair"], track) for track in TIMED}
    table = tables.plain(f"{given.rounds} rounds, two races", "entry", *TRACKS)
    for entry in found[MANY]["entries"]:
        rows = (found[track]["entries"][entry] for track in TRACKS)
        table.add_row(
            entry,
            *("{:.3f}, {:.3f} (places {}, {})".format(*r["medians"], *r["places"]) for r in rows),
        )
    Console().print(table)
    for track in TRACKS:
        other = ", ".join(found[track]["other_places"]) or "none"
        print(f"{track}: moved by {found[track]['moved_most']:.1%} at most; other places: {other}")
    shares = ", ".join(f"{track} {share:.0%}" for track, share in found["pairs_apart"].items())
    print(f"of {given.pairs}^2 pairs 5 % apart, told apart: {shares}")
    settings = {"rounds": given.rounds, "pairs": given.pairs}
    save(record("race twice", settings, found), given.out / "race-twice.json")


if __name__ == "__main__":
    main()
