"""A large class through the grader: `python -m benchmarks.grading_scale --out FOLDER`.

Synthetic submissions of one lab are graded by `python -m grader grade`, which is killed half way
and started again. Measured: submissions a minute, the time over that of the labs' own checks (see
`check_time.py`; of a sample, before, between and after the two runs), and the memory of all of the
grader's processes. Checked: every student is in the table, what was in the journal before the kill
is untouched, no student is in it twice, no process is left, and a sample graded once more without
a break has the same points.
"""

import argparse
import json
import os
import re
import secrets
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.check_time import PARTS
from benchmarks.grading_class import write_class
from benchmarks.grading_run import Half, grade, journalled
from grader.course.lab_toml import Lab, find_lab
from nanovllm.bench.record import record, save

KNOWN = re.compile(r"(\d+) submissions in \d+ s, (\d+) of them known already")
console = Console()


def own_times(
    lab: Lab, folder: Path, students: list[str], jobs: int, secret: str, out: Path
) -> list[dict[str, float]]:
    """Seconds of the checks alone, by part, for some of the class."""
    out.mkdir()
    packs = [str(folder / f"{student}.zip") for student in students]
    command = [sys.executable, "-m", "benchmarks.check_time"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    subprocess.run([*command, lab.key, str(jobs), secret, str(out), *packs],
                   check=True, env=environment)  # fmt: skip
    found = [json.loads((out / f"{name}.json").read_text("utf-8")) for name in students]
    for one in found:
        if "failed" in one:
            raise RuntimeError(one["failed"])
    return found


def kill_and_resume(
    folder: Path, lab: Lab, students: list[str], jobs: int, secret: Path, out: Path,
    between: Callable[[], None],
) -> tuple[Half, Half]:  # fmt: skip
    """Grade the class with a kill half way; AssertionError where something is lost or repeated.

    between: done after the kill, before it goes on.
    """
    first = grade(folder, lab, jobs, secret, out, kill_at=len(students) // 2)
    kept = journalled(out)
    console.print(f"killed after {len(kept)} of {len(students)}, {first.wall:.0f} s")
    between()
    second = grade(folder, lab, jobs, secret, out)
    assert second.status == 0, second.printed
    lines = journalled(out)
    assert lines[: len(kept)] == kept, "what was graded before the kill was changed"
    graded = [json.loads(line)["student"] for line in lines]
    assert sorted(graded) == students, "a student is missing from the journal, or in it twice"
    table = json.loads((out / "grades.json").read_text("utf-8"))
    assert [row["student"] for row in table] == students, "the table is not the class"
    said = KNOWN.search(" ".join(second.printed.split()))
    assert said is not None and [int(n) for n in said.groups()] == [len(students), len(kept)]
    return first, second


def same_points(out: Path, again: Path) -> int:
    """How many of a sample have the points of the first grading; AssertionError if not all."""
    tables = [json.loads((path / "grades.json").read_text("utf-8")) for path in (out, again)]
    first = {row["student"]: row for row in tables[0]}
    for row in tables[1]:
        assert first[row["student"]] == row, f"{row['student']} has other points when graded again"
    return len(tables[1])


def measure(lab: Lab, count: int, jobs: int, sample: int) -> tuple[dict[str, Any], list[Half]]:
    """Everything, in a temporary folder: what was found, and both runs."""
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        students = write_class(lab, count, home / "class")
        secret = home / "secret"
        secret.write_text(secrets.token_hex(32), encoding="ascii")
        # Every kind of submission has its share: 7 has no divisor in common with the ten kinds.
        chosen = sorted({students[7 * place % count] for place in range(sample)})
        own: list[dict[str, float]] = []

        def time_some(third: int) -> None:
            """By thirds, around both halves: a machine is not always as fast."""
            some, to = chosen[third::3], home / f"own-{third}"
            own.extend(own_times(lab, home / "class", some, jobs, secret.read_text(), to))
            console.print(f"own time of {len(own)} submissions measured")

        time_some(0)
        first, second = kill_and_resume(
            home / "class", lab, students, jobs, secret, home / "out", lambda: time_some(1)
        )
        time_some(2)
        (home / "some").mkdir()
        for student in chosen[:: max(1, len(chosen) // 12)]:
            os.link(home / "class" / f"{student}.zip", home / "some" / f"{student}.zip")
        assert grade(home / "some", lab, jobs, secret, home / "again").status == 0
        compared = same_points(home / "out", home / "again")
        points = [row["points"] for row in json.loads((home / "out/grades.json").read_text())]
    own_parts = {part: statistics.mean(one[part] for one in own) for part in PARTS}
    own_wall = sum(own_parts.values()) * count / jobs
    wall = first.wall + second.wall
    halves = {"first half": first, "second half": second}
    found = {
        "submissions": count,
        "wall_seconds": wall,
        "submissions_per_minute": 60 * count / wall,
        "seconds_to_first_result": {name: half.first_result for name, half in halves.items()},
        "own_wall_seconds": own_wall,
        "overhead_wall_percent": 100 * (wall / own_wall - 1),
        "own_seconds_a_submission": own_parts,
        "rss_mb": {name: half.memory("all_mb") for name, half in halves.items()},
        "rss_of_first_process_mb": {n: half.memory("grader_mb") for n, half in halves.items()},
        "killed_after": first.done,
        "processes_left_after_kill": first.left,
        "compared_with_an_unbroken_run": compared,
        "different_points": len(set(points)),
    }
    return found, [first, second]


def table(lab: Lab, found: dict[str, Any]) -> Table:
    """What was measured, for the terminal."""
    shown = Table(
        "", "", title=f"{found['submissions']} submissions of {lab.key}", show_header=False
    )
    shown.columns[1].justify = "right"
    shown.add_row("submissions a minute", f"{found['submissions_per_minute']:.1f}")
    shown.add_row("seconds, with both starts", f"{found['wall_seconds']:.0f}")
    starts = " and ".join(f"{s:.0f}" for s in found["seconds_to_first_result"].values())
    shown.add_row("  to the first result", starts)
    shown.add_row("  the checks' own", f"{found['own_wall_seconds']:.0f}")
    shown.add_row("  over them", f"{found['overhead_wall_percent']:+.1f} %")
    for key, whose in (("rss_mb", "all"), ("rss_of_first_process_mb", "the grader")):
        for half, rss in found[key].items():
            values = " / ".join(f"{value:.0f}" for value in rss.values())
            shown.add_row(f"MB of {whose}, {half} ({' / '.join(rss)})", values)
    shown.add_row("killed after", str(found["killed_after"]))
    shown.add_row(
        "same points without a break", f"{found['compared_with_an_unbroken_run']} of sample"
    )
    return shown


def draw(lab: Lab, halves: list[Half], path: Path) -> Path:
    """Submissions done and memory over time; a line where the grader was killed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True)
    before = 0.0
    for number, half in enumerate(halves):
        times = [(before + look.seconds) / 60 for look in half.looks]
        top.plot(times, [look.done for look in half.looks], color="C0")
        for whose, color, label in (
            ("all_mb", "C1", "all processes"),
            ("grader_mb", "C2", "the grader itself"),
        ):
            sizes = [getattr(look, whose) for look in half.looks]
            bottom.plot(times, sizes, color=color, label=label if not number else None, lw=0.8)
        before += half.wall
    for axes in (top, bottom):
        axes.axvline(halves[0].wall / 60, color="grey", ls=":")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    top.annotate("killed", (halves[0].wall / 60, 0), xytext=(4, 4), textcoords="offset points")
    top.set_ylabel("submissions graded")
    top.set_title(f"{lab.key}: a class graded, killed half way, and resumed")
    bottom.set_ylabel("resident memory, MB")
    bottom.set_xlabel("minutes")
    bottom.legend()
    figure.savefig(path, dpi=110)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--lab", default="01")
    parser.add_argument("--count", type=int, default=500, help="submissions")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at a time")
    parser.add_argument("--sample", type=int, default=60, help="whose own check time is measured")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    given = parser.parse_args()
    lab = find_lab(given.lab)
    found, halves = measure(lab, given.count, given.jobs, min(given.sample, given.count))
    settings = {"lab": lab.key, "jobs": given.jobs, "sample": given.sample}
    console.print(table(lab, found))
    given.out.mkdir(parents=True, exist_ok=True)
    print(save(record("grading scale", settings, found), given.out / "grading-scale.json"))
    print(draw(lab, halves, given.out / "grading-scale.png"))


if __name__ == "__main__":
    main()
