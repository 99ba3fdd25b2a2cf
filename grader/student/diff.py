"""The student's definitions beside the reference's, for tasks whose checks have passed."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

from grader.course.errors import LabError
from grader.course.lab_toml import Lab, Task
from grader.course.stubs import starts_empty
from grader.student.definitions import SurgeryError, source_of
from grader.student_files.lab_folder import shown
from grader.student_files.state_records import LabState

STYLES = {"-": "red", "+": "green"}


def require_unlocked(lab: Lab, task: Task, entry: LabState) -> None:
    if task.id not in entry.unlocked:
        number = f"{lab.number:02d}"
        raise LabError(
            f"the reference of task {task.id} opens once all its checks pass; `lab check {number} "
            f"--task {task.id}` runs them, `lab hint {number} {task.id}` helps on."
        )


def task_diff(lab: Lab, task: Task) -> Iterator[tuple[str, list[str]]]:
    """For each symbol of a task: its place, and the lines of a unified diff (none where equal)."""
    shown_whole = set()
    for symbol in task.symbols:
        module, _, qualname = symbol.partition(":")
        name = f"{module.replace('.', '/')}.py"
        if starts_empty((lab.stubs / name).read_text(encoding="utf-8"), qualname):
            if name in shown_whole:
                continue
            shown_whole.add(name)
            qualname = ""  # helpers are a part of the answer
        mine = _definition(lab.mine / name, qualname)
        theirs = _definition(lab.reference / name, qualname)
        lines = difflib.unified_diff(mine, theirs, "yours", "reference", lineterm="", n=100)
        yield f"{shown(lab.mine / name)}  {qualname}".rstrip(), list(lines)[3:]


def _definition(path: Path, qualname: str) -> list[str]:
    """The lines of one definition, or of the whole file where none is named."""
    try:
        text = path.read_bytes().decode()
        source = source_of(text, qualname) if qualname else text
    except (SurgeryError, UnicodeDecodeError) as error:
        raise LabError(f"{shown(path)} cannot be compared: {error}.") from None
    except OSError as error:
        raise LabError(f"{shown(path)} cannot be read: {error.strerror}.") from None
    lines = [] if source is None else source.splitlines()
    return [
        line.rstrip()
        for line in lines
        if not line.strip().startswith(("### BEGIN SOLUTION", "### END SOLUTION"))
    ]


def show_diff(lab: Lab, task: int | None, entry: LabState, console: Console) -> None:
    """Print the diff of one task, or of every task that is open."""
    if not lab.reference.is_dir():
        raise LabError(f"the reference of {lab.key} is not in this copy of the course.")
    if task is not None:
        require_unlocked(lab, lab.task(task), entry)
    tasks = (
        [lab.task(task)]
        if task is not None
        else [one for one in lab.tasks if one.id in entry.unlocked]
    )
    if not tasks:
        raise LabError(
            f"no task of {lab.key} has passed all its checks yet, which opens its reference; "
            f"`lab check {lab.number:02d}` runs them."
        )
    for one in tasks:
        console.print(Text(f"task {one.id} {one.title}", style="bold"))
        for place, lines in task_diff(lab, one):
            console.print(Text(f"  {place}" if lines else f"  {place}  the same", style="cyan"))
            for line in lines:
                console.print(Text(line, style=STYLES.get(line[0], "")), soft_wrap=True)
    locked = [str(one.id) for one in lab.tasks if one.id not in entry.unlocked]
    if task is None and locked:
        console.print(
            Text(
                f"not open yet: task {', '.join(locked)} (opens by passing its checks)", style="dim"
            )
        )
    console.print(Text("- yours  + reference", style="dim"))
