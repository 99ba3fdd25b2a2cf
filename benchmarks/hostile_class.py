"""A class with attackers in it: `python -m benchmarks.hostile_class --out DIR`.

A hundred submissions of lab 04 are graded, of which thirty attack the grader (every second of
`tests/cheats`); then the seventy others alone; both several times, in turns. Checked: points and
order of the seventy are the same, the hostile ones take no longer than their limits, nobody is
lost, and no report has a word of another's submission. Then the box's cost: a few submissions of
the whole lab on each level of confinement that this machine has, in turns.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from grader.course.lab_toml import Lab
from grader.grading import Limits, Sandbox
from grader.grading.batch import Graded, grade_class
from grader.grading.class_submissions import discover
from grader.grading.grading_toml import Config
from grader.grading.journal import Journal
from grader.grading.report_text import lab_html, lab_text
from nanovllm.bench import tables
from nanovllm.bench.machine import require_quiet
from nanovllm.bench.record import record, save
from tests.grading_corpus import CHEATS, LAB, LIMITS, SECRET, WHOLE, write_cheat, write_solved

MARK = "cheat-was-here"  # what the corpus leaves behind where it gets out
MARGIN = 30.0  # seconds of a hostile submission that are not its own: packing, waiting, the report


@dataclass
class Run:
    """A class graded once: seconds, reports, and who was done when."""

    seconds: float
    graded: list[Graded]

    def points(self, names: Sequence[str]) -> dict[str, float | None]:
        found = {one.handed_in.student: one.report.points for one in self.graded}
        return {name: found.get(name) for name in names}


def write_class(folder: Path, honest: int, cheats: Sequence[Path]) -> list[str]:
    """The honest, with a word of their own, and among them the hostile; the honest ones' names."""
    places = [round((i + 1) * honest / (len(cheats) + 1)) for i in range(len(cheats))]
    names = []
    for number in range(honest):
        names.append(f"s{number:03d}_honest")
        files = ("budget.py",) if number % 4 == 3 else ("budget.py", "request.py")
        home = write_solved(folder / names[-1], *files)
        path = home / LAB.package / "budget.py"
        path.write_text(f"# word-of-{names[-1]}\n{path.read_text('utf-8')}", encoding="utf-8")
    for place, cheat in zip(places, cheats, strict=True):
        write_cheat(folder / f"s{place:03d}_hostile_{cheat.stem}", cheat)
    return names


def grade(folder: Path, jobs: int, level: str = "", lab: Lab = LAB) -> Run:
    """The whole folder with a fresh sandbox and journal."""
    config = Config(limits=LIMITS if lab is LAB else Limits())
    with tempfile.TemporaryDirectory() as name, Sandbox.open(level) as sandbox:
        sandbox.probe(lab)
        journal, start = Journal(Path(name) / "journal.jsonl"), time.perf_counter()
        graded = list(
            grade_class(discover(folder), lab, SECRET, config, sandbox, journal, jobs, None)
        )
        seconds = time.perf_counter() - start
        journal.close()
    return Run(seconds, graded)


def complaints(run: Run, honest: Sequence[str]) -> list[str]:
    """What must not be: somebody lost, or words of others in a report."""
    found = []
    for one in run.graded:
        name, report = one.handed_in.student, one.report
        if report.lost:
            found.append(f"{name} is lost")
        texts = lab_text(report) + lab_html(report)
        found += [f"{name} reads {other}" for other in honest if other != name
                  and f"word-of-{other}" in texts]  # fmt: skip
        if MARK in texts and "hostile" not in name:
            found.append(f"{name} has a cheat's mark")
    return found


def order(run: Run, honest: Sequence[str]) -> list[str]:
    """The table as a course writes it: by name, whoever was done first."""
    return sorted(one.handed_in.student for one in run.graded if one.handed_in.student in honest)


def against(given: argparse.Namespace, home: Path) -> dict[str, Any]:
    """The class with the hostile ones in it, and without, in turns."""
    cheats = sorted(CHEATS.glob("*.py"))[::2][: given.hostile]
    honest = write_class(home / "with", given.honest, cheats)
    write_class(home / "without", given.honest, [])
    times: dict[str, list[float]] = {"with": [], "without": []}
    said: list[str] = []
    points: list[dict[str, float | None]] = []
    for number in range(given.rounds):
        for kind in ("with", "without")[:: 1 if number % 2 else -1]:
            run = grade(home / kind, given.jobs)
            times[kind].append(run.seconds)
            said += complaints(run, honest)
            points.append(run.points(honest))
            if order(run, honest) != honest:
                said.append(f"{kind}: the order changed")
            print(
                f"  {kind}: {len(run.graded)} in {run.seconds:.0f} s", file=sys.stderr, flush=True
            )
    if any(one != points[0] for one in points):
        said.append("points of the honest differ")
    allowed = len(cheats) * (LIMITS.seconds + MARGIN)
    more = median(times["with"]) - median(times["without"])
    if more > allowed:
        said.append(f"the hostile took {more:.0f} s, allowed are {allowed:.0f}")
    return {
        "honest": len(honest), "hostile": [cheat.stem for cheat in cheats], "seconds": times,
        "seconds_more": more, "seconds_allowed": allowed, "complaints": said,
        "points": points[0],
    }  # fmt: skip


def levels(given: argparse.Namespace, home: Path) -> dict[str, list[float]]:
    """Seconds that a few honest submissions take on each level, round by round."""
    for number in range(given.few):
        package = home / "few" / f"s{number:03d}" / WHOLE.package
        shutil.copytree(WHOLE.reference, package)
        (package / "of.py").write_text(f"# the work of {number}\n", encoding="utf-8")
    found: dict[str, list[float]] = {level: [] for level in given.levels}
    for number in range(given.rounds):
        for level in given.levels[:: 1 if number % 2 else -1]:
            found[level].append(grade(home / "few", given.jobs, level, WHOLE).seconds)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--honest", type=int, default=70)
    parser.add_argument("--hostile", type=int, default=30)
    parser.add_argument("--few", type=int, default=20, help="submissions on each level")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--levels", nargs="*", default=["bubblewrap", "landlock", "limits"])
    parser.add_argument("--anyway", action="store_true", help="on a busy machine, too")
    given = parser.parse_args()
    require_quiet(given.anyway)
    with tempfile.TemporaryDirectory() as home:
        found = against(given, Path(home))
        found["levels"] = levels(given, Path(home))
    plain = median(found["levels"].get("limits", [1.0]))
    title = f"{given.honest} honest, {given.hostile} hostile, {given.jobs} at a time"
    table = tables.plain(title, "", "seconds")
    for kind, seconds in found["seconds"].items():
        table.add_row(f"the class {kind} the hostile", f"{median(seconds):.1f}")
    for level, seconds in found["levels"].items():
        cost = f"{median(seconds):.2f} ({100 * (median(seconds) / plain - 1):+.0f} %)"
        table.add_row(f"{given.few} on {level}", cost)
    Console().print(table)
    settings = {"lab": "04, tasks 1 and 3", "rounds": given.rounds, "jobs": given.jobs}
    save(record("hostile class", settings, found), given.out / "hostile-class.json")
    sys.exit("\n".join(found["complaints"]) or 0)


if __name__ == "__main__":
    main()
