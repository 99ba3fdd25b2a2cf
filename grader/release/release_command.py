"""`python -m grader release`: build the students' repository."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from grader.course.errors import LabError
from grader.course.paths import RELEASES
from grader.course.terminal import ask
from grader.release.contents import contents
from grader.release.keep_release import keep, kept_records
from grader.release.lab_selection import select
from grader.release.leaks import leaks
from grader.release.write_release import Written, write_release

console = Console()


def release(
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="The students' repository.")],
    labs: Annotated[str, typer.Option(help="01-03, 01,02 or all.")] = "all",
    with_reference: Annotated[
        str, typer.Option(help="Closed labs, whose reference goes along: 01,02, all or none.")
    ] = "none",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files that were edited since, unasked.")
    ] = False,
    releases: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="Where each release's checks are kept for grading.",
            show_default=".grading/releases",
        ),
    ] = RELEASES,
) -> None:
    """Build the students' repository: no solution of an open lab, no hidden scenario."""
    from grader.authoring.build import stale as what_is_stale  # it needs nbgrader, slow to import

    selection = select(labs, with_reference)
    stale = what_is_stale(selection.labs)
    if stale:
        raise LabError(f"{stale[0]} is stale; run `python -m grader build` first.")
    files = contents(selection)
    found = leaks(files, selection)
    if found:
        raise LabError("nothing was written, because " + "; ".join(found) + ".")
    known = kept_records(releases)
    done = write_release(files, to, lambda name: overwrite or _ask(name), known)
    keep(to, done.record, releases)
    _report(done, to)
    names = ", ".join(lab.key for lab in selection.labs)
    closed = ", ".join(lab.key for lab in selection.closed) or "no lab"
    said = f"{to}, {done.record}: {names}; reference of {closed}."
    console.print(said, highlight=False, soft_wrap=True)


def _ask(name: str) -> bool:
    """Ask a person; without one, what was edited stays."""
    return sys.stdin.isatty() and ask(f"{name} was edited since it was released. Overwrite it?")


def _report(done: Written, to: Path) -> None:
    for what, names in (
        ("new", done.new),
        ("updated", done.updated),
        ("removed, no longer released", done.removed),
    ):
        if names:
            console.print(f"{len(names)} files {what}", highlight=False)
    for name in done.kept:
        console.print(
            f"[yellow]kept as it is, edited since: {to / name} (--overwrite replaces it)[/]",
            soft_wrap=True,
        )
