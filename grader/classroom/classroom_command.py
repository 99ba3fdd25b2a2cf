"""`python -m grader classroom` makes a class's folder, `autograde` grades what was handed in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from grader.course.errors import LabError
from grader.course.lab_toml import find_lab

if TYPE_CHECKING:
    from grader.classroom.autograde import Graded

console = Console()


def classroom(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The class's folder, made anew.")],
    course: Annotated[str, typer.Option(help="The class's name in nbgrader.")] = "nanovllm-labs",
) -> None:
    """Make the folder of a class: nbgrader's settings; submissions and grades come beside them."""
    from grader.classroom.class_folder import new_course

    made = new_course(folder, course)
    console.print(f"{made.folder} is ready; next: cd {folder}", highlight=False, soft_wrap=True)


def autograde(
    lab: Annotated[str, typer.Argument(metavar="LAB", help="1, 01 or lab01")],
    student: Annotated[
        list[str] | None, typer.Option("--student", help="One student; again for more.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Also submissions that are graded already.")
    ] = False,
    folder: Annotated[Path, typer.Option("--class", help="The class's folder.")] = Path(),
) -> None:
    """Grade a lab in nbgrader's class: modules and notebook, boxed, one student at a time."""
    from grader.classroom.autograde import autograde as grade
    from grader.classroom.class_folder import open_course

    course, chosen = open_course(folder), find_lab(lab)
    there = course.submitted(chosen)
    missing = sorted(set(student or []) - set(there))
    if missing:
        raise LabError(f"{missing[0]} handed in no {chosen.key}; it would lie in "
                       f"{course.place('submitted', missing[0], chosen)}.")  # fmt: skip
    if not there:
        raise LabError(
            f"nobody's {chosen.key} is in {course.folder / 'submitted'}; `nbgrader collect "
            f"{chosen.key}` or `nbgrader zip_collect {chosen.key}` brings the submissions there."
        )
    results = []
    with course.alone():
        for one in grade(course, chosen, student or there, again):
            results.append(one)
            console.print(_line(one), highlight=False, soft_wrap=True)
    console.print(_summary(results), highlight=False)
    raise typer.Exit(1 if any(one.failed for one in results) else 0)


def extend(
    lab: Annotated[str, typer.Argument(metavar="LAB", help="1, 01 or lab01")],
    student: Annotated[str, typer.Argument(metavar="STUDENT", help="The id in nbgrader.")],
    days: Annotated[float, typer.Option(min=0, help="In place of any before; 0 takes it back.")],
    folder: Annotated[Path, typer.Option("--class", help="The class's folder.")] = Path(),
) -> None:
    """Move the due date of a student's lab, and take the late policy's share by the new one."""
    from nbgrader.api import MissingEntry

    from grader.classroom.class_folder import open_course

    course, chosen = open_course(folder), find_lab(lab)
    with course.gradebook() as gradebook:
        try:
            gradebook.grant_extension(chosen.key, student, minutes=round(1440 * days))
        except MissingEntry:
            raise LabError(
                f"{student} has no graded {chosen.key} yet: an extension is given to a submission, "
                f"so run `python -m grader autograde {chosen.key}` first."
            ) from None
    autograde(lab, [student], again=True, folder=folder)


def _line(one: Graded) -> str:
    note = escape(f"  {one.note}" if one.note else "")
    if one.failed:
        return f"[red]✗[/] {one.student:<20}{note}"
    mark = "[dim]=[/]" if one.kept else "[green]✓[/]"
    hand = " + by hand" if one.by_hand else ""
    return f"{mark} {one.student:<20} {one.points:6.2f}/{one.max_points:g}{hand}{note}"


def _summary(results: list[Graded]) -> Table:
    table = Table("handed in", "graded now", "as before", "to grade by hand", "failed")
    graded = sum(not one.failed and not one.kept for one in results)
    counts = (
        len(results), graded, sum(one.kept for one in results),
        sum(one.by_hand for one in results), sum(one.failed for one in results),
    )  # fmt: skip
    table.add_row(*map(str, counts))
    return table
