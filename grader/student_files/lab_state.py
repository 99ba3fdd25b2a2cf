"""What the student has done so far: starts, latest results, hints taken, working time.

All of it stands in `.lab/state.json`, for one person and no grade: grading runs the code again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime

from grader.course import integrity
from grader.course.digest import digest
from grader.course.errors import LabError, sentence_of
from grader.course.lab_toml import Lab, find_lab, labs
from grader.course.outcome import Outcome, Status
from grader.student_files import state_file, work_time
from grader.student_files.state_records import MODES, LabState, Result, State

__all__ = [
    "LabState",
    "Result",
    "State",
    "current_task",
    "digest",
    "editing",
    "load",
    "record_guess",
    "record_hint",
    "record_run",
    "record_saves",
    "record_start",
    "with_saves",
]


def load() -> State:
    """The state as recorded; of a corrupt file, kept under another name, `notice` tells."""
    try:
        return State.from_json(state_file.read_json())
    except (state_file.StateFileError, KeyError, TypeError, ValueError, AttributeError) as error:
        why = f"{state_file.state_path()} cannot be used ({error})"
        try:
            kept = state_file.set_aside()
        except FileNotFoundError:  # another process was first
            return State()
        except OSError:
            return State(notice=f"{why}; nothing can be recorded until it is moved away.")
        return State(
            notice=f"{why}; it is kept as {kept.name} and a fresh one is begun. Your code is "
            "untouched: `lab check` fills the board again."
        )


@contextmanager
def editing() -> Iterator[State]:
    """Load, let the caller change, and save, as one step against other processes."""
    with state_file.locked():
        state = load()
        yield state
        state_file.write_json(state.to_json())


def record_start(lab: Lab) -> str:
    """Note that a lab was begun; the clock of the working time starts with it."""
    now = time.time()

    def change(state: State) -> None:
        state.lab(lab.key).started = state.lab(lab.key).started or _now_text()
        if state.last_lab != lab.key:
            state.last_task = 0
        state.last_at, state.last_lab = max(now, state.last_at or 0.0), lab.key

    return _tolerantly(change)


def record_run(lab_key: str, mode: str, outcomes: list[Outcome], digest: str) -> str:
    """Keep the latest outcome of each check that ran on the files of that digest.

    Returns one sentence where something could not be recorded, else the empty string.
    """
    if mode not in MODES:
        return ""
    try:
        lab = find_lab(lab_key)
        return _tolerantly(lambda state: _record(state, lab, mode, outcomes, digest))
    except LabError as error:
        return f"this is not recorded on the board: {error}"


def record_saves() -> str:
    """Count the working time up to the latest saves."""

    def change(state: State) -> None:
        state.spend(_saves(state))

    return _tolerantly(change)


def record_hint(check: str, lab_key: str, rung: int) -> None:
    """Note that a hint of a check was shown; refuses where it cannot be noted."""
    try:
        with editing() as state:
            hints = state.lab(lab_key).hints
            hints[check] = max(rung, hints.get(check, 0))
    except OSError as error:
        raise LabError(f"No hint was taken, as it cannot be noted: {sentence_of(error)}") from None


def record_guess(lab_key: str, key: str, value: float) -> str:
    """Keep a guess; returns one sentence where it could not be recorded, else ''."""

    def change(state: State) -> None:
        state.lab(lab_key).guesses[key] = value

    return _tolerantly(change)


def with_saves(state: State) -> State:
    """The state with the saves since the last command counted too, in memory only."""
    state.spend(_saves(state))
    return state


def current_task(state: State, lab: Lab, module: str = "") -> int:
    """The task being worked on: the first one not passed, of one module where it is named.

    0 where all of them have passed: what follows is no task's time.
    """
    candidates = [
        task.id
        for task in lab.tasks
        if not module or any(symbol.startswith(f"{module}:") for symbol in task.symbols)
    ]
    passed = state.lab(lab.key).unlocked if lab.key in state.labs else []
    return next((task for task in candidates if task not in passed), 0)


def _saves(state: State) -> list[work_time.Event]:
    """The saves of all started labs that are not counted yet."""
    if state.last_at is None:
        return []
    found = []
    for lab in labs():
        if lab.started:
            modules = {symbol.partition(":")[0] for symbol in lab.task_of_symbol}
            owners = {module: current_task(state, lab, module) for module in modules}
            owners[""] = current_task(state, lab)
            found += work_time.saves(lab, state.last_at, time.time(), owners)
    return found


def _record(state: State, lab: Lab, mode: str, outcomes: list[Outcome], measured_on: str) -> None:
    saves = _saves(state)
    state.spend(saves)
    entry, now = state.lab(lab.key), time.time()
    tasks = _worked_on(state, lab, {item.task for item in outcomes}, saves,
                       _changed(entry.results[mode], outcomes))  # fmt: skip
    state.spend([work_time.Event(now, lab.key, task) for task in tasks])
    entry.started = entry.started or _now_text()
    for item in outcomes:
        entry.results[mode][item.check] = Result(
            item.status,
            item.task,
            item.points,
            item.title,
            measured_on,
            _now_text(),
            item.reason,
            item.mistake,
        )
    if mode == "isolated":
        entry.unlocked = sorted({*entry.unlocked, *_passed(lab, entry, measured_on)})


def _changed(before: dict[str, Result], outcomes: list[Outcome]) -> set[int]:
    """The tasks that stand otherwise than before, or that run code for the first time."""
    unwritten = (Status.TODO, Status.BLOCKED)
    return {
        item.task
        for item in outcomes
        if (item.status is not before[item.check].status if item.check in before
            else item.status not in unwritten)
    }  # fmt: skip


def _worked_on(
    state: State, lab: Lab, ran: set[int], saves: list[work_time.Event], changed: Iterable[int] = ()
) -> list[int]:
    """The tasks that a run of checks ends work on: the one that ran, else that of the last save.

    Where nothing was saved since the last event (or the files came with old times), they are those
    that the run found changed, else the task of that event.
    """
    if len(ran) == 1:
        return [*ran]
    latest = max((save for save in saves if save.lab == lab.key), default=None)
    if latest is not None:
        return [latest.task]
    if changed:
        return sorted(changed)
    passed = state.lab(lab.key).unlocked
    still = state.last_lab == lab.key and state.last_task and state.last_task not in passed
    return [state.last_task if still else current_task(state, lab)]


def _passed(lab: Lab, entry: LabState, measured_on: str) -> set[int]:
    """The tasks of which every check, as handed out, passes on these files."""
    results = entry.results["isolated"]
    known = integrity.read(lab).checks
    edited = integrity.tampered_tasks(lab)
    done = set()
    for task in lab.tasks:
        names = [name for name, item in (known or results).items() if item.task == task.id]
        fine = (
            name in results
            and results[name].status is Status.PASSED
            and results[name].digest == measured_on
            for name in names
        )
        if names and all(fine) and task.id not in edited:
            done.add(task.id)
    return done


def _tolerantly(change: Callable[[State], None]) -> str:
    """Change the state where it can be written; where it cannot, say so and go on."""
    try:
        with editing() as state:
            change(state)
            return state.notice
    except OSError as error:
        return f"this is not recorded on the board: {sentence_of(error)}"


def _now_text() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
