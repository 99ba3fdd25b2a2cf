"""The commands of maintainers and instructors: `python -m grader ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from grader.classroom.classroom_command import autograde, classroom, extend
from grader.classroom.gradescope_zip import gradescope
from grader.course.errors import LabError, sentence_of
from grader.course.lab_toml import Lab, find_lab, labs
from grader.grading import grade_command, race_command
from grader.release.release_command import release

app = typer.Typer(
    help="Build and prove the course, grade a class.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
of_classes = (grade_command.grade, grade_command.items, grade_command.similar, race_command.race)
for command in (release, classroom, autograde, extend, *of_classes, gradescope):
    app.command()(command)
console = Console()


@app.command()
def build(
    check: Annotated[
        bool, typer.Option("--check", help="Say what is stale, write nothing.")
    ] = False,
    lab: Annotated[list[str] | None, typer.Argument(help="Labs; all when none is named.")] = None,
) -> None:
    """Make stubs, notebooks, checks.json and mistakes.json from solutions/."""
    from grader.authoring import (
        build as builder,  # it needs nbgrader, which takes seconds to import
    )

    chosen = [find_lab(name) for name in lab] if lab else labs()
    if check:
        found = builder.stale(chosen)
        for name in found:
            console.print(f"stale: {name}")
        console.print(
            "everything generated is up to date" if not found else "run `python -m grader build`"
        )
        raise typer.Exit(1 if found else 0)
    with console.status("building") as status:
        for name in builder.build(chosen, status.update):
            console.print(f"written: {name}")


@app.command()
def mistakes(
    lab: str,
    only: Annotated[str, typer.Option(help="One mistake by name.")] = "",
    scenarios: Annotated[int, typer.Option(help="Ask scenarios alone, at so many draws.")] = 0,
) -> None:
    """Plant every known mistake of a lab and show which checks catch and name it."""
    from grader.authoring import mistakes as bank

    chosen = find_lab(lab)
    if only and only not in {mistake.name for mistake in bank.bank(chosen)}:
        raise LabError(f"no mistake of {chosen.key} is named {only!r}.")
    if scenarios:
        raise typer.Exit(_unseen(chosen, scenarios, only))
    with console.status("planting"):
        planted = [mistake for mistake in bank.bank(chosen) if only in ("", mistake.name)]
        found = list(bank.findings(chosen, planted))
    entries = bank.table(found)
    shown = Table("mistake", "task", "caught by", "named by")
    missed = 0
    for finding in found:
        named = bank.named_by(finding, entries)
        missed += not named
        checks = [check.rpartition("::")[2] for check in finding.observations]
        shown.add_row(
            finding.mistake.name,
            str(finding.mistake.task),
            ", ".join(checks) or "[red]nothing[/]",
            ", ".join(name.rpartition("::")[2] for name in named) or "[red]nothing[/]",
        )
    console.print(shown)
    console.print(f"{len(found) - missed} of {len(found)} caught and named")
    raise typer.Exit(1 if missed else 0)


def _unseen(lab: Lab, draws: int, only: str) -> int:
    """List the mistakes that the scenarios do not see; how many no draw sees."""
    from grader.authoring.unseen import only_counted, sights

    with console.status("planting"):
        found = list(sights(lab, draws, only))
    shown = Table("mistake", "task", "seen")
    for sight in found:
        if not sight.at_once:
            seen = f"at draw {sight.draw}" if sight.scenario else "[red]never[/]"
            shown.add_row(sight.mistake.name, str(sight.mistake.task), seen)
    console.print(shown)
    at_once, never = sum(s.at_once for s in found), sum(not s.scenario for s in found)
    console.print(
        f"{at_once} of {len(found)} seen at a student's draws, {len(found) - never} at {draws}; "
        f"{len(only_counted(lab))} more show in counts only"
    )
    return never


@app.command()
def variants(
    lab: str,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 1,
    keep: Annotated[Path | None, typer.Option(help="Keep this solved folder as one more.")] = None,
    name: Annotated[str, typer.Option(help="The name to keep it under.")] = "",
) -> None:
    """Grade the right solutions by other hands, checks and scenarios: each must get every point."""
    from grader.authoring import variants as others

    chosen = find_lab(lab)
    if keep:
        console.print(f"kept as {others.keep(chosen, keep, name or keep.parent.name)}")
    wrong = 0
    for variant in others.kept(chosen):
        with console.status(variant.stem):
            lost = others.lost(variant, chosen, range(seeds))
        wrong += bool(lost)
        console.print(f"{variant.stem}: {'every point' if not lost else 'loses points'}")
        for line in lost:
            console.print(f"    {line}", markup=False, highlight=False)
    raise typer.Exit(1 if wrong else 0)


@app.command()
def mutants(
    lab: str,
    most: Annotated[int, typer.Option(min=1, help="How many at most.")] = 150,
    seed: Annotated[int, typer.Option(help="Which ones.")] = 0,
    variant: Annotated[str, typer.Option(help="Of this right variant, not the reference.")] = "",
    jobs: Annotated[int, typer.Option(help="At a time; 0: one a processor.")] = 0,
    only: Annotated[str, typer.Option(help="Those of them whose `file: change` holds this.")] = "",
) -> None:
    """Change a solution in small ways and show which changes no check and no scenario notices."""
    import tempfile

    from grader.authoring import mutants as bank
    from grader.authoring import variants as others

    chosen = find_lab(lab)
    with tempfile.TemporaryDirectory() as folder:
        solved = chosen.reference
        if variant:
            known = {path.stem: path for path in others.kept(chosen)}
            if variant not in known:
                raise LabError(f"no variant {variant!r} of {chosen.key}; there are {[*known]}.")
            others.write(known[variant], chosen, Path(folder))
            solved = Path(folder) / chosen.package
        found = []
        planted = [m for m in bank.mutants(chosen, solved, most, seed) if only in m.key]
        for verdict in track(bank.verdicts(chosen, solved, planted, jobs), "trying", len(planted)):
            found.append(verdict)
            told = ""
            if verdict.named_wrongly:
                told = f"the card of {verdict.check} names a mistake in {verdict.named}"
            elif verdict.noticed == "scenarios":
                told = f"only the scenario {verdict.check} notices it"
            elif not verdict.noticed and not verdict.reason:
                told = "nobody notices it"
            if told:
                change = verdict.mutant
                print(f"{change.file}:{change.line}: {told}", flush=True)
                print(f"    {change.before}\n    {change.after}", flush=True)
    counted = [verdict for verdict in found if not verdict.reason]
    checks = sum(verdict.noticed == "checks" for verdict in counted)
    both = sum(bool(verdict.noticed) for verdict in counted)
    if not counted:
        raise LabError(f"no mutant of {chosen.key} to try; {len(found)} are known to be equal.")
    named = [verdict for verdict in counted if verdict.named]
    console.print(
        f"{len(found)} mutants, {len(found) - len(counted)} of them change nothing; noticed by "
        f"checks {checks / len(counted):.1%}, by checks and scenarios {both / len(counted):.1%}; "
        f"{len(named)} cards name a mistake, {sum(v.named_wrongly for v in named)} of them one "
        "that lies elsewhere"
    )


@app.command()
def verbatim(lab: str) -> None:
    """List the solution lines of a lab that stand in its release, and where."""
    from grader.release.contents import contents
    from grader.release.lab_selection import select
    from grader.release.leaks import MOST, verbatim

    chosen = find_lab(lab)
    found = verbatim(contents(select(f"{labs()[0].key}-{chosen.key}", "none")), chosen)
    for line, places in found.found.items():
        more = f" and {len(places) - 2} more" if len(places) > 2 else ""
        console.print(f"{line}\n    {', '.join(places[:2])}{more}", markup=False, highlight=False)
    console.print(
        f"{len(found.found)} of {found.total} lines ({found.share:.1%}; at most {MOST:.0%})"
    )
    raise typer.Exit(1 if found.share >= MOST else 0)


@app.command()
def hours(
    what: Annotated[
        str, typer.Argument(metavar="[NN|DIR]", help="a lab, or a folder with a class's packs")
    ] = "",
) -> None:
    """Show how long labs take by the course's rule, or by the packs of a class."""
    from grader.authoring.hours import estimate, medians, stated

    folder = Path(what) if what and Path(what).is_dir() else None
    of_class = medians(folder) if folder else {}
    if folder and not of_class:
        raise LabError(f"no pack in {folder} holds working times.")
    shown = Table("lab / task", "estimate min", *(["median min", "students"] if folder else []))
    for lab in labs() if folder or not what else [find_lab(what)]:
        if folder and lab.key not in of_class:
            continue
        by_rule, real = estimate(lab), of_class.get(lab.key, {})
        total = sum(by_rule.values())
        shown.add_row(
            f"{lab.number:02d} {lab.title}", f"{total} ({total // 60} h {total % 60:02d})"
        )
        for task in lab.tasks:
            cells = [f"   {task.id} {task.title}", str(by_rule[task.id])]
            if folder:
                median, students = real.get(task.id, (0.0, 0))
                cells += [f"{median:.0f}", str(students)] if students else ["", "0"]
            shown.add_row(*cells)
    console.print(shown)
    if what and not folder:
        console.print(f"The handout says: {stated(find_lab(what))}.")


def main() -> None:
    """Run a command; the course's own errors become one line."""
    try:
        app()
    except LabError as error:
        console.print(f"[red]{escape(str(error))}[/]")
        raise SystemExit(2) from None
    except OSError as error:
        console.print(f"[red]{escape(sentence_of(error))}[/]")
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
