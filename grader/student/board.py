"""The board: labs, tasks, points in two columns, hints, time, and the next step."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from grader.course.checks_json import CheckEntry
from grader.course.hardware import NOT_VERIFIED
from grader.student.progress import LabProgress, Tally, TaskProgress, Trust, next_step
from grader.student_files.state_records import LabState, State

BAR_WIDTH = 13
MARKS = {
    "passed": "[green]✓[/]",
    "failed": "[red]✗[/]",
    "todo": "[dim]·[/]",
    "blocked": "[yellow]–[/]",
    "": " ",
}


def show_board(all_labs: list[LabProgress], records: State, console: Console) -> None:
    """Everything `lab` alone shows."""
    hinted = any(one.hints for one in all_labs)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
    table.add_column("lab / task", min_width=16)  # alone gives way on a narrow terminal
    table.add_column("isolated", justify="right", no_wrap=True)
    table.add_column("mine", justify="right", no_wrap=True)
    if hinted:  # the column appears with the first hint, and costs its width only then
        table.add_column("with\nhints", justify="right", no_wrap=True)
    table.add_column("progress", no_wrap=True, min_width=BAR_WIDTH)
    table.add_column("time\nh:mm", justify="right", no_wrap=True)
    for one in all_labs:
        for row in _rows(one, console):
            table.add_row(*(row if hinted else row[:3] + row[4:]))
    console.print(table)
    for text in [text for one in all_labs for text in one.problems]:
        console.print(Text(f"! {text}", style="yellow"), soft_wrap=True)
    for one in all_labs:
        entry = records.labs.get(one.lab.key)
        results = entry.results["isolated"].values() if entry else ()
        if any(result.reason == NOT_VERIFIED for result in results):
            text = f"! {one.lab.key}: passed in Triton's interpreter, {NOT_VERIFIED}"
            console.print(Text(text, style="yellow"), soft_wrap=True)
    console.print()
    step = Text.assemble(("next: ", "bold cyan"), next_step(all_labs, records))
    console.print(step, soft_wrap=True)  # a command broken over two lines cannot be copied


def _rows(one: LabProgress, console: Console) -> Iterator[tuple[Text, ...]]:
    """A lab's own row, then one for each of its tasks once it is started."""
    name = f"{one.lab.number:02d} {one.lab.title}"
    if not one.started:
        estimate = f"/{_clock(60 * one.lab.minutes)}"
        cells = (name, "–", "–", "–", "not started", estimate)
        yield tuple(Text(cell, style="dim") for cell in cells)
        return
    isolated, mine = one.tally("isolated"), one.tally("mine")
    yield (
        Text(name, style="bold"),
        _points(isolated, bold=True),
        _points(mine, bold=True),
        _with_hints(isolated.earned, one.cost, one.hints),
        _bar(isolated, console),
        _time(one.seconds, one.lab.minutes),
    )
    for task in one.tasks:
        yield (
            Text(f"   {task.task.id} {task.task.title}"),
            _points(task.isolated),
            _points(task.mine),
            _with_hints(task.isolated.earned, task.cost, task.hints),
            _standing(task),
            _time(task.seconds, task.task.minutes),
        )


def _points(tally: Tally, bold: bool = False) -> Text:
    """Points; `~` before those that the files as they are now may not earn."""
    if tally.trust is Trust.NONE and not tally.earned:
        return Text(f"–/{tally.points}", style="dim")
    doubt = "~" if tally.trust in (Trust.STALE, Trust.EDITED) else ""
    style = "yellow" if doubt else "green" if tally.full else ""
    return Text(f"{doubt}{tally.earned}/{tally.points}", style=f"bold {style}" if bold else style)


def _with_hints(earned: int, cost: float, hints: int) -> Text:
    """What the points would be if hints cost some, and how many hints were taken."""
    return Text(f"{earned - cost:g} ({hints})" if hints else "")


def _standing(progress: TaskProgress) -> Text:
    trust = progress.isolated.trust
    if trust in (Trust.STALE, Trust.EDITED):
        return Text(trust.value, style="yellow")
    if trust is Trust.NONE:
        return Text("to do", style="dim")
    if progress.isolated.full:
        return Text("done", style="green")
    return Text(f"{progress.passed} of {progress.checks} pass")


def _bar(tally: Tally, console: Console) -> Text:
    plain = not console.encoding.lower().startswith("utf")
    full, empty = ("#", ".") if plain else ("█", "░")
    done = BAR_WIDTH * tally.earned // tally.points if tally.points else 0
    style = "yellow" if tally.trust in (Trust.STALE, Trust.EDITED) else "green"
    return Text.assemble((full * done, style), (empty * (BAR_WIDTH - done), "dim"))


def _time(seconds: float, minutes: int) -> Text:
    return Text(f"{_clock(seconds)}/{_clock(60 * minutes)}")


def _clock(seconds: float) -> str:
    hours, minutes = divmod(int(seconds) // 60, 60)
    return f"{hours}:{minutes:02d}"


def check_list(one: LabProgress, checks: list[CheckEntry], entry: LabState) -> Table:
    """The checks of one lab with their latest isolated outcomes, as `lab list` shows them."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
    table.add_column("")
    table.add_column("check", overflow="fold")
    table.add_column("points", justify="right")
    table.add_column("hints", justify="right")
    table.add_column("what it checks", ratio=1)
    task_titles = {progress.task.id: progress for progress in one.tasks}
    shown_task = None
    for check in sorted(checks, key=lambda check: check.task):
        if check.task != shown_task and check.task in task_titles:
            shown_task = check.task
            progress = task_titles[check.task]
            table.add_row(
                "",
                Text(f"task {check.task} {progress.task.title}", style="bold"),
                _points(progress.isolated),
                "",
                _standing(progress),
            )
        result = entry.results["isolated"].get(check.id)
        hints = str(entry.hints[check.id]) if check.id in entry.hints else ""
        mark = MARKS[str(result.status) if result else ""]
        table.add_row(mark, check.name, str(check.points), hints, Text(check.title))
    return table


def time_table(all_labs: list[LabProgress]) -> Table:
    """Own working time against the course's estimate, by lab and task."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
    table.add_column("lab / task", no_wrap=True, overflow="ellipsis")
    table.add_column("yours h:mm", justify="right")
    table.add_column("estimate", justify="right")
    table.add_column("yours / estimate", justify="right")
    for one in all_labs:
        if not one.started:
            continue
        rows = [(f"{one.lab.number:02d} {one.lab.title}", one.seconds, one.lab.minutes, "bold")]
        rows += [
            (f"   {p.task.id} {p.task.title}", p.seconds, p.task.minutes, "") for p in one.tasks
        ]
        for name, seconds, minutes, style in rows:
            share = f"{seconds / (60 * minutes):.0%}" if seconds and minutes else "–"
            table.add_row(Text(name, style=style), _clock(seconds), _clock(60 * minutes), share)
    return table
