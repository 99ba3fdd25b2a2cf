"""What both the command line and `lab watch` let the student do to a lab: hint, list, reset."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from grader.course import integrity
from grader.course.errors import LabError
from grader.course.lab_toml import Lab
from grader.course.stubs import starts_empty
from grader.student import board, hints, progress, reset
from grader.student_files import lab_folder, lab_state
from grader.student_files.lab_folder import require_started, shown

Ask = Callable[[str], bool]


def take_hint(lab: Lab, wanted: str, console: Console, ask: Ask) -> None:
    """Show the hints already taken, then offer the next one and its cost."""
    entry = lab_state.load().lab(lab.key)
    ladder = hints.ladder(lab, wanted, entry)
    check = ladder.check
    console.print(Text(f"{lab.key} task {check.task}: {check.title} ({check.name})", style="bold"))
    for number, text in enumerate(ladder.shown, start=1):
        _print_hint(console, number, text)
    if ladder.is_used_up:
        console.print(
            Text(
                f"These are all its hints; the handout {shown(lab.folder)}/README.md has the rest."
            ),
            soft_wrap=True,
        )
        return
    number, total = ladder.taken + 1, len(ladder.hints)
    question = (
        f"Hint {number} of {total} costs {ladder.next_cost:g} of {check.points} points "
        'on the board (in "with hints" only). Show it?'
    )
    if not ask(question):
        console.print("No hint taken.")
        return
    lab_state.record_hint(check.id, lab.key, number)
    _print_hint(console, number, ladder.hints[number - 1])


def _print_hint(console: Console, number: int, text: str) -> None:
    console.print(Text.assemble((f"  {number}. ", "bold cyan"), text))


def list_checks(lab: Lab, console: Console) -> None:
    """Every check of the lab with its points and latest result."""
    records = lab_state.load()
    checks = list(integrity.read(lab).checks.values())
    if not checks:
        raise LabError(
            f"{lab.key} has no list of checks; `git checkout labs/{lab.key}` restores "
            "it (maintainers: `python -m grader build`)."
        )
    one = progress.progress_of(lab, records)
    console.print(board.check_list(one, checks, records.lab(lab.key)))


def _task_question(lab: Lab, task: int) -> str:
    """What the reset of a task puts back: stubs, and whole files that start empty."""
    names, empty = [], []
    for symbol in lab.task(task).symbols:
        module, _, name = symbol.partition(":")
        stub = lab.stubs / f"{module.replace('.', '/')}.py"
        whole = starts_empty(stub.read_text(encoding="utf-8"), name)
        (empty if whole else names).append(stub.name if whole else name)
    parts = [f"the stubs of {', '.join(names)}"] if names else []
    parts += [f"the whole of {', '.join(dict.fromkeys(empty))}"] if empty else []
    return f"Put back {' and '.join(parts)}"


def reset_lab(lab: Lab, task: int | None, console: Console, ask: Ask) -> None:
    """Put stubs back after asking; always with a backup."""
    require_started(lab)
    plan = reset.plan_lab(lab) if task is None else reset.plan_task(lab, lab.task(task))
    what = lab.key if task is None else f"{lab.key} task {task} ({lab.task(task).title})"
    if not plan.contents:
        console.print(f"{what} is as in the stubs already; nothing to reset.", markup=False)
        return
    files = ", ".join(shown(path) for path in plan.contents)
    if task is None:
        question = f"Put back {files} as handed out?"
    else:
        question = f"{_task_question(lab, task)} in {files}, and nothing else?"
    if not ask(f"{question} A backup is kept."):
        console.print("Nothing was reset.")
        return
    kept = plan.carry_out()
    if not kept.exists():  # what was put back had been deleted
        console.print(Text(f"{what} is reset."))
        return
    console.print(Text(f"{what} is reset. To get your version back:"))
    console.print(Text(f"  {lab_folder.how_to_get_back(lab, kept)}", style="cyan"), soft_wrap=True)
