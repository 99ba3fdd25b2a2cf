"""`grader grade`, `grader items` and `grader similar`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    track,
)
from rich.table import Table

from grader.course.errors import LabError
from grader.course.lab_toml import Lab, find_lab
from grader.course.paths import ROOT
from grader.grading import grade_rows, gradebook_csv, report_files
from grader.grading.class_submissions import HandedIn, discover, left_out, unknown_times
from grader.grading.grade_rows import Row
from grader.grading.grading_toml import Config
from grader.grading.journal import Journal

SECRET = ROOT / ".grading" / "secret"
OUT = ROOT / ".grading"
console = Console()


def grade(
    folder: Annotated[Path, typer.Argument(help="Folder with one zip or folder a student.")],
    lab: Annotated[str, typer.Option(help="The lab to grade, as 05.")],
    jobs: Annotated[int, typer.Option(min=1, help="Submissions at a time.")] = os.cpu_count() or 1,
    out: Annotated[Path | None, typer.Option(help="Results; .grading/labNN if not given.")] = None,
    config: Annotated[Path | None, typer.Option(help="grading.toml: limits, late policy.")] = None,
    roster: Annotated[Path | None, typer.Option(help="CSV: file, student, name, id, ...")] = None,
    secret: Annotated[
        Path,
        typer.Option(help="The course's secret; made if missing.", show_default=".grading/secret"),
    ] = SECRET,
    assignment: Annotated[str, typer.Option(help="Its name in Canvas and Moodle.")] = "",
    sandbox: Annotated[str, typer.Option(help="bubblewrap, landlock or limits; else tried.")] = "",
    checks: Annotated[
        str, typer.Option(help="own: of the release a pack was made with; new: today's for all.")
    ] = "",
    releases: Annotated[
        Path | None,
        typer.Option(help="Where `release` keeps their checks.", show_default=".grading/releases"),
    ] = None,
    dask: Annotated[str, typer.Option(help="Address of a Dask scheduler to share out to.")] = "",
) -> None:
    """Grade a folder of submissions of one lab, each in a sandbox; go on where it stopped."""
    from grader.grading.batch import grade_class
    from grader.grading.student_seeds import course_secret
    from grader.sandbox.levels import LEVELS
    from grader.sandbox.sandbox import Sandbox

    chosen, settings = find_lab(lab), Config.load(config)
    if sandbox and sandbox not in LEVELS:
        raise LabError(f"there is no sandbox {sandbox!r}; there are {', '.join(LEVELS)}.")
    home = releases or settings.releases
    kept = replace(settings, checks=checks or settings.checks, releases=home).kept()
    class_ = discover(folder, roster)
    for name in left_out(folder):
        console.print(f"[yellow]{_plain(name)} is neither a zip nor a folder; left out[/]")
    _times(chosen, settings, class_)
    target = (out or OUT / chosen.key).absolute()
    secret.parent.mkdir(parents=True, exist_ok=True)
    key, journal = course_secret(secret), Journal.at(target / "journal.jsonl")
    if others := journal.labs - {chosen.key}:
        raise LabError(
            f"{target} holds the results of {', '.join(sorted(others))}, which those of "
            f"{chosen.key} would replace; give --out another folder."
        )
    rows: list[Row] = []
    lost, known, unkept, start = [], 0, 0, time.monotonic()
    with Sandbox.open(sandbox) as box, _progress() as bar:
        shown = bar.add_task(chosen.key, total=len(class_))
        if dask:
            from grader.grading.dask_cluster import grade_on_dask

            graded = grade_on_dask(dask, class_, chosen, key, settings, journal, kept)
        else:
            box.start()
            graded = grade_class(class_, chosen, key, settings, box, journal, jobs, kept)
        for one in graded:
            if one.report.lost:
                lost.append(one)
            report_files.reports(target / "reports", one.report)
            penalty = settings.late.penalty(chosen.key, one.handed_in.submitted)
            rows.append(grade_rows.row(one.handed_in, one.report, penalty, one.today))
            known += one.known
            unkept += one.unkept
            bar.update(shown, advance=1)
        level, tried = box.level, box.tried
    rows.sort(key=lambda row: row.handed_in.student)
    name = assignment or f"{chosen.key} {chosen.title}"
    gradebook_csv.canvas(target / "canvas.csv", rows, name)
    gradebook_csv.moodle(target / "moodle.csv", rows, name)
    grade_rows.summary(target / "grades.json", rows)
    console.print(class_table(chosen, rows))
    seconds = time.monotonic() - start
    console.print(
        f"{len(rows)} submissions in {seconds:.0f} s, {known} of them known already; "
        f"sandbox: {level or 'on the workers'}; results in {target}"
    )
    for text in by_release(rows):
        console.print(text, soft_wrap=True)
    if unkept:
        console.print(
            f"[yellow]{unkept} name a release that is not kept in {home}; today's checks "
            "graded them[/]", soft_wrap=True
        )  # fmt: skip
    for why in tried:
        console.print(f"[yellow]{why}[/]")
    if lost:
        names = ", ".join(_plain(one.handed_in.student) for one in lost[:5])
        console.print(f"[red]{len(lost)} could not be graded ({names}); run the command again.[/]")
        raise typer.Exit(1)


def by_release(rows: list[Row]) -> Iterator[str]:
    """Who was graded by the checks of an earlier release, and what today's would change."""
    earlier = [row for row in rows if row.release]
    if not earlier:
        return
    names = ", ".join(sorted({row.release for row in earlier}))
    yield (
        f"{len(earlier)} of {len(rows)} were graded by the checks that they were made with "
        f"(release {names}); --checks new takes today's for everybody"
    )
    compared = [row for row in earlier if row.today is not None]
    changed = [row for row in compared if row.today != row.points]
    for row in changed:
        yield (
            f"  {_plain(row.handed_in.student)}: {row.points:g}, today's checks would give "
            f"{row.today:g}: {_plain(row.mended)}"
        )
    if compared:
        yield f"  today's checks would give the other {len(compared) - len(changed)} the same"


def items(
    lab: Annotated[str, typer.Option(help="The lab, as 05.")],
    out: Annotated[Path | None, typer.Option(help="Where `grader grade` put its results.")] = None,
) -> None:
    """How hard each check was, how well it tells students apart, and the mistakes made most."""
    from grader.grading.item_analysis import analyse, latest
    from grader.grading.item_plot import picture, tables

    chosen = find_lab(lab)
    target = (out or OUT / chosen.key).absolute()
    found = analyse(chosen, list(latest(target)))
    for table in tables(found):
        console.print(table)
    for task, students in found.disagreeing.items():
        if students:
            console.print(
                f"task {task}: {students} passed every check, and a hidden scenario differs "
                "(an edge that the checks do not see, or checks that were tricked)"
            )
    picture(found, target / "items.png")
    console.print(f"picture: {target / 'items.png'}")


def similar(
    folder: Annotated[Path, typer.Argument(help="Folder with one zip or folder a student.")],
    lab: Annotated[str, typer.Option(help="The lab, as 05.")],
    out: Annotated[Path, typer.Option(help="The page.")] = Path("similar.html"),
    most: Annotated[int, typer.Option(min=1, help="How many pairs to show.")] = 50,
) -> None:
    """Put solutions that are alike side by side: students', the reference, right ones by others."""
    from grader.grading import similar as alike

    chosen = find_lab(lab)
    class_ = discover(folder)
    out.parent.mkdir(parents=True, exist_ok=True)
    with console.status("reading"):
        found = list(alike.solutions(class_, chosen))
    number = len(found) * (len(found) - 1) // 2
    pairs = list(track(alike.pairs(found), "comparing", number, console=console))
    out.write_text(alike.page(pairs, chosen, most), encoding="utf-8")
    console.print(f"{number} pairs; right solutions share up to {alike.chance(pairs):.0%}")
    console.print(f"page: {out}")


def class_table(lab: Lab, rows: list[Row]) -> Table:
    """One line a student, one column a task."""
    table = Table("student", *(str(task.id) for task in lab.tasks), "points", "late", "note")
    table.title = f"{lab.key} {lab.title}, points by task"
    for column in table.columns[1:-1]:
        column.justify = "right"
    for row in rows:
        late = f"-{100 * row.penalty:.0f} %" if row.penalty else ""
        points = f"{row.final:g}/{row.max_points:g}"
        tasks = (f"{points:g}" for points in row.tasks)
        table.add_row(_plain(row.handed_in.student), *tasks, points, late, _plain(row.note[:40]))
    return table


def _plain(text: str) -> str:
    from rich.markup import escape

    from grader.grading.report_text import line

    return escape(line(text))


def _times(lab: Lab, settings: Config, class_: list[HandedIn]) -> None:
    missing = unknown_times(class_) if lab.key in settings.late.deadlines else []
    if missing:
        raise LabError(
            f"{lab.key} has a deadline, and nothing says when {missing[0]} handed in "
            f"({len(missing)} in all); give --roster with a column `submitted`. The times inside a "
            "student's zip are the student's own word."
        )


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=console,
    )  # fmt: skip
