"""The command `lab`: the student's side of the course."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text
from typer.core import TyperGroup

from grader.course import terminal
from grader.course.errors import LabError, sentence_of
from grader.course.lab_toml import Lab, find_lab, labs
from grader.course.paths import ROOT
from grader.student_files import lab_state


class Sentences(TyperGroup):
    """Problems end in one sentence and exit code 2, never in a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except LabError as error:
            terminal.warn(_capital(str(error)))
        except BrokenPipeError:
            raise
        except OSError as error:
            terminal.warn(_capital(sentence_of(error)))
        raise typer.Exit(2)


def _capital(text: str) -> str:
    """A sentence begins with a capital, unless with the name of a lab, a file or a command."""
    first = text.split(" ", 1)[0]
    return text[:1].upper() + text[1:] if first.isalpha() else text


app = typer.Typer(
    cls=Sentences,
    add_completion=False,
    pretty_exceptions_enable=False,
    invoke_without_command=True,
    help="nano-vLLM Labs. Without a command: the board, and what to do next.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

LabArgument = Annotated[str, typer.Argument(metavar="N", help="the lab: 1, 01 or lab01")]
OptionalLab = Annotated[
    str | None, typer.Argument(metavar="[N]", help="the lab; else the one you are at")
]
TaskOption = Annotated[int | None, typer.Option("--task", "-t", metavar="T", help="one task only")]
MineOption = Annotated[bool, typer.Option("--mine", help="the whole chain on your own code")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="do not ask")]


@app.callback()
def home(ctx: typer.Context) -> None:
    _require_this_course()
    if ctx.invoked_subcommand is not None:
        return
    from grader.student.board import show_board
    from grader.student.progress import all_progress

    records = lab_state.with_saves(_load())
    found = all_progress(records)
    if not found:
        raise LabError(f"there are no labs in {ROOT / 'labs'}; `git checkout labs` restores them.")
    show_board(found, records, terminal.console())


@app.command()
def start(
    lab: LabArgument,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="take edits made in stubs/ over into your own files")
    ] = False,
    yes: YesOption = False,
) -> None:
    """Begin a lab: copy its stubs into your package."""
    from grader.student_files import lab_folder

    found, was_started = find_lab(lab), find_lab(lab).started
    if adopt:
        _adopt(found, yes)
        return
    added = lab_folder.start(found)
    say = _say()
    if was_started and not added:
        say(f"{found.key} is started already, and no file is missing; nothing was changed.")
    elif was_started:
        say(f"{found.key} is started already; these files were missing and are back as stubs:")
    else:
        say(f"{found.key} {found.title} is started:")
    for path in added:
        say(f"  {lab_folder.shown(path)}")
    for item in lab_folder.edited_stubs(found):
        terminal.warn(str(item))
    say(f"Read   {lab_folder.shown(found.folder)}/README.md")
    say(f"Open   {lab_folder.shown(found.mine / found.first)}")
    say(f"Then   lab check {found.number:02d}   (or lab watch {found.number:02d})")


def _adopt(lab: Lab, yes: bool) -> None:
    from grader.student_files import lab_folder

    edited = [item for item in lab_folder.edited_stubs(lab) if item.how == "edited"]
    if not edited:
        raise LabError(f"no stub of {lab.key} was edited; there is nothing to take over.")
    say, ask = _say(), _asker(yes)
    for item in edited:
        mine, stub = lab_folder.shown(item.mine), lab_folder.shown(item.stub)
        also = "" if item.mine_is_untouched else " You have edited both; yours is backed up first."
        if not ask(f"Copy {stub} over {mine}?{also}"):
            continue
        kept, restored = lab_folder.adopt(item)
        say(f"{mine} now holds your edit.")
        if kept is not None:
            say(f"  what it held before: {lab_folder.how_to_get_back(lab, kept)}")
        if not restored:
            say(f"  put the stub back with: {lab_folder.git_checkout(item.stub)}")


@app.command()
def check(lab: OptionalLab = None, task: TaskOption = None, mine: MineOption = False) -> None:
    """Run a lab's checks, or one task's."""
    from grader.student import run_pytest
    from grader.student.progress import all_progress, next_in_chain, next_step

    found = _lab(lab)
    run_pytest.command(found, task, mine)  # refuses before anything is started
    if not found.started:
        start(f"{found.number}")
    code = run_pytest.run(found, task, mine)
    if code in (0, 1):
        records = _load()
        known = all_progress(records)
        step = next_in_chain(found, known) if mine and code else next_step(known, records)
        _say()(Text.assemble(("next: ", "bold cyan"), step))
    raise typer.Exit(code)


@app.command()
def read(
    lab: OptionalLab = None,
    here: Annotated[bool, typer.Option("--here", help="in the terminal, not the browser")] = False,
) -> None:
    """Read a lab's chapter: the book in the browser, else the handout in the terminal."""
    from grader.student.read import chapter, open_chapter, show_handout

    found = _lab(lab)
    if not here and open_chapter(found):
        _say()(f"The browser shows {chapter(found)}.")
        return
    show_handout(found, terminal.console())


@app.command()
def watch(lab: OptionalLab = None, task: TaskOption = None, mine: MineOption = False) -> None:
    """Run the checks again on every save; single keys: h hint, l list, r reset, q quit."""
    from grader.student import actions
    from grader.student.lab_watch import Watch

    found, console = _lab(lab), terminal.console()

    def at() -> int:
        return task or lab_state.current_task(lab_state.load(), found) or 1

    Watch(
        found,
        task,
        mine,
        console,
        {
            "h": lambda: actions.take_hint(found, str(at()), console, terminal.ask),
            "l": lambda: actions.list_checks(found, console),
            "r": lambda: actions.reset_lab(found, at(), console, terminal.ask),
        },
    ).run()


@app.command(name="list")
def list_checks(lab: OptionalLab = None) -> None:
    """List a lab's checks with points and latest results."""
    from grader.student import actions

    actions.list_checks(_lab(lab), terminal.console())


@app.command()
def hint(
    lab: LabArgument,
    wanted: Annotated[str, typer.Argument(metavar="TASK|CHECK", help="a task or a check's name")],
    yes: YesOption = False,
) -> None:
    """Take the next of a check's three hints; its cost is shown first."""
    from grader.student import actions

    actions.take_hint(find_lab(lab), wanted, terminal.console(), _asker(yes))


@app.command()
def reset(lab: LabArgument, task: TaskOption = None, yes: YesOption = False) -> None:
    """Put a lab's stubs back, or one task's and nothing else; keeps a backup."""
    from grader.student import actions

    actions.reset_lab(find_lab(lab), task, terminal.console(), _asker(yes))


@app.command()
def diff(lab: LabArgument, task: TaskOption = None) -> None:
    """Compare your code with the reference, for tasks whose checks have passed."""
    from grader.student.diff import show_diff
    from grader.student_files import lab_folder

    found = find_lab(lab)
    lab_folder.require_started(found)
    show_diff(found, task, _load().lab(found.key), terminal.console())


@app.command()
def predict(
    lab: LabArgument,
    key: Annotated[str | None, typer.Argument(metavar="[KEY]", help="the question")] = None,
    value: Annotated[str | None, typer.Argument(metavar="[VALUE]", help="your guess")] = None,
) -> None:
    """List a lab's questions, or guess at one; your own code answers once its tasks pass."""
    from grader.student import predict as predictions

    found, say = find_lab(lab), _say()
    if key is not None:
        predictions.guess(found, key, value)
    failed: LabError | None = None
    for question in predictions.questions(found):
        if key in (None, question.key):
            try:
                say(predictions.told(found, question, _load()))
            except LabError as error:  # the others may have answers
                failed = failed or error
    if failed is not None:
        raise failed


@app.command()
def stress(
    lab: LabArgument,
    seeds: Annotated[int, typer.Option(min=1, help="how many other seeds")] = 50,
) -> None:
    """Repeat a lab's random histories at seed after seed, until one fails."""
    from grader.student import stress as repeated
    from grader.student_files import lab_folder

    found, say = find_lab(lab), _say()
    lab_folder.require_started(found)
    failed = repeated.first_failure(found, seeds, terminal.console())
    say(repeated.card(failed) if failed else f"{seeds} seeds, and none fails.")
    raise typer.Exit(1 if failed else 0)


@app.command()
def demo(lab: LabArgument) -> None:
    """Run a lab's demo on your code, on the reference where you have none."""
    from grader.student import demo as demos

    found = find_lab(lab)
    demos.require_demo(found)
    command, environment = demos.command(found)
    try:
        code = subprocess.run(command, cwd=ROOT, env=environment).returncode
    except KeyboardInterrupt:
        code = 130
    raise typer.Exit(code)


@app.command()
def kernels(lab: LabArgument, task: TaskOption = None) -> None:
    """What a GPU's compiler says of your Triton kernels; no GPU is needed."""
    from grader.student.kernels import show

    raise typer.Exit(0 if show(find_lab(lab), task, terminal.console()) else 1)


@app.command()
def doctor() -> None:
    """Say what is missing or wrong on this machine, and how to get it."""
    from grader.student.doctor import BAD, examine, show_finding

    console = terminal.console()
    worst = [show_finding(finding, console) for finding in examine()]
    raise typer.Exit(1 if BAD in worst else 0)


@app.command(name="time")
def show_time(
    lab: Annotated[str | None, typer.Argument(metavar="[N]", help="this lab only")] = None,
) -> None:
    """Your working time against the estimate, by lab and task."""
    from grader.student.board import time_table
    from grader.student.progress import all_progress

    found, only = all_progress(lab_state.with_saves(_load())), find_lab(lab) if lab else None
    if not any(one.started for one in found):
        raise LabError("no lab is started yet; `lab start 01` starts the first.")
    console = terminal.console()
    console.print(time_table([one for one in found if only in (None, one.lab)]))
    console.print(
        "Time between saves and checks; a gap of 15 minutes or more is a break.", style="dim"
    )


@app.command()
def pack(
    lab: LabArgument,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="else labNN.zip here")
    ] = None,
) -> None:
    """Zip a lab's files to hand them in."""
    from grader.student.pack import pack as make
    from grader.student_files import lab_folder

    found = find_lab(lab)
    made = make(found, _load().lab(found.key), output)
    for text in made.warnings:
        terminal.warn(text)
    _say()(f"{lab_folder.shown(made.path)}: {', '.join(made.names)} and a manifest.")


@app.command()
def submit(
    lab: LabArgument,
    course: Annotated[str, typer.Option(help="the course's name, if nbgrader asks for it")] = "",
) -> None:
    """Pack a lab and hand it in through nbgrader, on the JupyterHub of a class."""
    from grader.student.submit import submit as hand_in

    found = find_lab(lab)
    made = hand_in(found, _load().lab(found.key), course)
    for text in made.warnings:
        terminal.warn(text)
    _say()(f"{found.key} is handed in: {', '.join(made.names)}.")


@app.command()
def race(
    seed: Annotated[str, typer.Option(help="other models and requests")] = "mine",
) -> None:
    """Pack lab 14's capstone for the race, run its gate, and count beside the plain engine."""
    from grader.student import race as races
    from grader.student.pack import pack as make
    from grader.student_files import lab_folder

    lab, console = find_lab("14"), terminal.console()
    lab_folder.require_started(lab)
    with console.status("the gate, and the counts"):
        found = races.stand(lab, lab.mine.parent, seed)
    if found.problem:
        terminal.warn(f"Out of the race: {found.problem}.")
        raise typer.Exit(1)
    console.print(races.table(found))
    made = make(lab, _load().lab(lab.key), None)
    say = _say()
    say("The gate is open: every text is the plain engine's. The race itself measures time.")
    say(f"Your entry: {lab_folder.shown(made.path)}")


@app.command()
def update(
    release: Annotated[
        Path | None, typer.Argument(metavar="[RELEASE]", help="the newer release: folder or zip")
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="go back to the release before")] = False,
) -> None:
    """Bring a newer release of the course; your own files stay as they are."""
    from grader.student import update as updates
    from grader.student_files import lab_folder, state_file

    if (release is None) is not undo:
        raise LabError("give the folder or zip of a newer release, or --undo, and not both.")
    with state_file.locked():
        source = updates.opened(release) if release else updates.before_last()
        found = updates.planned(source, back=undo)
        if not found.changes:
            raise LabError(f"this copy is {found.here} already, with all of its files.")
        told, warned = [*updates.news(found)], [*updates.warnings(found)]
        found.carry_out()
    say = _say()
    changed = [name for name in found.changes if not name.startswith(updates.BESIDE)]
    say(f"This copy is {found.to} now; {len(changed)} files have changed.")
    for text in told:
        say(text)
    for text in warned:
        terminal.warn(text)
    if {"requirements.txt", "pyproject.toml"} & found.changes.keys():
        say("Packages have changed: `make setup` installs them.")
    if not undo:
        say(f"`lab update --undo` goes back; a backup is in {lab_folder.shown(found.backup)}.")


def _lab(name: str | None) -> Lab:
    """The lab named, else the one the student is at."""
    if name is not None:
        return find_lab(name)
    records = lab_state.load()
    started = [lab for lab in labs() if lab.started]
    if not started:
        raise LabError("no lab is started yet; `lab start 01` starts the first.")
    latest = [lab for lab in started if lab.key == records.last_lab]
    return (latest or started)[0]


def _load() -> lab_state.State:
    records = lab_state.load()
    if records.notice:
        terminal.warn(records.notice)
    return records


def _asker(yes: bool) -> Callable[[str], bool]:
    return (lambda question: True) if yes else terminal.ask


def _say() -> Callable[[str | Text], None]:
    console = terminal.console()
    return lambda text: console.print(text, markup=False, soft_wrap=True)


def _require_this_course() -> None:
    """Refuse to work on one copy of the course from inside another."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if folder == ROOT:
            return
        if (folder / "grader" / "course" / "paths.py").is_file() and (folder / "labs").is_dir():
            raise LabError(
                f"this `lab` belongs to the copy of the course in {ROOT}, and you are in another "
                f"one, {folder}; `python -m pip install -e . --no-deps` here makes it this one's."
            )


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(errors="replace")  # a terminal without ✓ shows ? instead of failing
    terminal.drop_empty_width()
    app()


if __name__ == "__main__":
    main()
