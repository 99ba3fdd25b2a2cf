"""`grader race`: the entries of a class against the plain engine, and the board."""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from grader.course.lab_toml import find_lab
from grader.course.paths import ROOT

console = Console()


def race(
    folder: Annotated[Path, typer.Argument(help="Folder with one zip or folder a student.")],
    out: Annotated[
        Path, typer.Option(help="Where the board goes.", show_default=".grading/race")
    ] = ROOT / ".grading" / "race",
    seed: Annotated[str, typer.Option(help="Of an earlier race, to run it again.")] = "",
    rounds: Annotated[int, typer.Option(min=4, help="Timed rounds of each entry.")] = 20,
    sandbox: Annotated[str, typer.Option(help="bubblewrap, landlock or limits; else tried.")] = "",
) -> None:
    """Race the capstones of lab 14: gate, counts, and processor time beside the plain engine's."""
    from grader.grading.class_submissions import discover
    from grader.grading.race import Race
    from grader.grading.race_board import facts, page, standings, table
    from grader.sandbox.sandbox import Sandbox

    entries = discover(folder)
    out.mkdir(parents=True, exist_ok=True)
    with Sandbox.open(sandbox) as box, _progress() as bar:
        run = Race(find_lab("14"), seed or secrets.token_hex(8), box, rounds)
        shown = bar.add_task("", total=len(entries) * rounds)
        results, board = [], []
        for number, entry in enumerate(entries):
            name = escape(entry.student)

            def told(said: str, name: str = name) -> None:
                bar.update(shown, description=f"{name}: {said}")
                bar.advance(shown, said.startswith("round"))

            results.append(run.run(entry, told))
            bar.update(shown, completed=(number + 1) * rounds)
            board, about = standings(results), facts(run)
            record = {"about": about, "results": [asdict(one) for one in results]}
            text = json.dumps(record, indent=1)
            (out / "race.json").write_text(text, encoding="utf-8")  # also of a race that is stopped
            (out / "race.html").write_text(page(board, about), encoding="utf-8")
        warnings = box.warnings
    console.print(table(board))
    for why in warnings:
        console.print(f"[yellow]{escape(why)}[/]")
    console.print(f"The board: {out / 'race.html'}; this race again: --seed {run.seed}")


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=console,
    )  # fmt: skip
