"""How far the student is, worked out from the records and the files as they are now."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from grader.course import checks_json, integrity
from grader.course.digest import digest, same
from grader.course.errors import LabError
from grader.course.lab_toml import Lab, Task, labs
from grader.course.outcome import Status
from grader.student.hints import cost
from grader.student_files.lab_folder import backups_folder, edited_stubs, shown
from grader.student_files.state_records import LabState, Result, State


class Trust(StrEnum):
    """Whether a recorded result may be believed."""

    FRESH = "fresh"
    NONE = "not run"
    STALE = "changed since"  # the files are others now
    EDITED = "checks edited"  # the checks are not as handed out


@dataclass(frozen=True)
class Tally:
    """The points of one task or lab in one mode."""

    earned: int = 0
    points: int = 0
    trust: Trust = Trust.NONE

    @property
    def full(self) -> bool:
        return self.trust is Trust.FRESH and self.earned == self.points

    @property
    def edited(self) -> bool:
        return self.trust is Trust.EDITED

    def __add__(self, other: Tally) -> Tally:
        worst = max(self.trust, other.trust, key=list(Trust).index)
        return Tally(self.earned + other.earned, self.points + other.points, worst)


@dataclass(frozen=True)
class TaskProgress:
    """One task: points alone and in the student's own chain, hints, time."""

    task: Task
    isolated: Tally
    mine: Tally
    passed: int
    checks: int
    hints: int
    cost: float
    seconds: float


@dataclass(frozen=True)
class LabProgress:
    """One lab; `problems` are sentences about files that are not as they should be."""

    lab: Lab
    started: bool
    tasks: tuple[TaskProgress, ...]
    problems: tuple[str, ...]

    def tally(self, mode: str) -> Tally:
        total, *rest = [getattr(task, mode) for task in self.tasks]
        for tally in rest:
            total = total + tally
        return total

    @property
    def hints(self) -> int:
        return sum(task.hints for task in self.tasks)

    @property
    def cost(self) -> float:
        return sum(task.cost for task in self.tasks)

    @property
    def seconds(self) -> float:
        return sum(task.seconds for task in self.tasks)


def progress_of(lab: Lab, records: State) -> LabProgress:
    """Compare the records of a lab with its files."""
    entry = records.labs.get(lab.key, LabState())
    if not lab.started:
        lost = entry.started and not lab.mine.exists()
        problem = (
            f"{lab.key} was started, but {shown(lab.mine)}/ is gone; `lab start "
            f"{lab.number:02d}` begins it anew, copies are in {shown(backups_folder())}/."
        )
        return LabProgress(lab, False, _tasks(lab, LabState(), ""), (problem,) if lost else ())
    try:
        tasks = _tasks(lab, entry, digest(lab))
        problems = [*checks_json.problems(lab), *map(str, edited_stubs(lab))]
    except LabError as error:
        return LabProgress(lab, True, tuple(map(_empty, lab.tasks)), (str(error),))
    return LabProgress(lab, True, tasks, tuple(problems))


def all_progress(records: State) -> list[LabProgress]:
    return [progress_of(lab, records) for lab in labs()]


def _empty(task: Task) -> TaskProgress:
    return TaskProgress(task, Tally(0, task.points), Tally(0, task.points), 0, 0, 0, 0.0, 0.0)


def _tasks(lab: Lab, entry: LabState, now: str) -> tuple[TaskProgress, ...]:
    known = integrity.read(lab).checks
    edited = integrity.tampered_tasks(lab) if entry.started else set()
    found = []
    for task in lab.tasks:
        results = {
            mode: {
                name: result
                for name, result in entry.results[mode].items()
                if result.task == task.id and (not known or name in known)
            }
            for mode in entry.results
        }
        tallies = {
            mode: _tally(task, list(these.values()), now, mode, task.id in edited)
            for mode, these in results.items()
        }
        checks = [check for check in known.values() if check.task == task.id]
        passed = {name for name, r in results["isolated"].items() if r.status is Status.PASSED}
        rungs = {check.id: entry.hints[check.id] for check in checks if check.id in entry.hints}
        price = sum(
            cost(known[name].points, rung) for name, rung in rungs.items() if name in passed
        )
        found.append(
            TaskProgress(
                task,
                tallies["isolated"],
                tallies["mine"],
                len(passed),
                len(checks) or len(results["isolated"]),
                sum(rungs.values()),
                price,
                entry.seconds.get(task.id, 0.0),
            )
        )
    return tuple(found)


def _tally(task: Task, results: list[Result], now: str, mode: str, edited: bool) -> Tally:
    if not results:
        return Tally(0, task.points)
    earned = min(sum(r.points for r in results if r.status is Status.PASSED), task.points)
    fresh = all(same(result.digest, now, mode) for result in results)
    trust = Trust.EDITED if edited else Trust.FRESH if fresh else Trust.STALE
    return Tally(earned, task.points, trust)


def next_step(all_labs: list[LabProgress], records: State) -> str:
    """The one thing to do next, with the command for it."""
    open_labs = [one for one in all_labs if one.started and not one.tally("isolated").full]
    open_labs.sort(key=lambda one: (one.lab.key != records.last_lab, one.lab.number))
    if open_labs:
        return _next_in(open_labs[0])
    # what is begun comes first, then what follows the lab that was worked on last
    for one in sorted(all_labs, key=lambda one: (not one.started, one.lab.key < records.last_lab)):
        number = f"{one.lab.number:02d}"
        chain = all(low.started for low in all_labs if low.lab.number < one.lab.number)
        if one.started and chain and not one.tally("mine").full:
            if one.tally("mine").trust is Trust.FRESH:
                return (
                    f"{one.lab.key} on your own code of all labs: lab check {number} --mine "
                    "(some checks failed there)"
                )
            return f"{one.lab.key} on your own code of all labs: lab check {number} --mine"
        if not one.started:
            done = any(low.started and low.lab.key == records.last_lab for low in all_labs)
            ending = _ending(records.last_lab) if done else ""
            return f"{ending}{one.lab.key} {one.lab.title}: lab start {number}"
    return f"{_ending(all_labs[-1].lab.key)}that was the last lab"


def next_in_chain(lab: Lab, all_labs: list[LabProgress]) -> str:
    """What to do after `lab check --mine` did not get all points: it is about that run alone."""
    one = next(found for found in all_labs if found.lab.key == lab.key)
    short = [task for task in one.tasks if task.mine.trust is Trust.FRESH and not task.mine.full]
    if not short:
        return f"{lab.key} has checks that failed on your own code of all labs; see above"
    below = {key for progress in short for key in progress.task.runs_on}
    for low in all_labs:
        if low.lab.key in below and not low.tally("isolated").full:
            number = f"{low.lab.number:02d}"
            step = f"lab check {number}" if low.started else f"lab start {number}"
            return (
                f"{lab.key} on your own code of all labs runs on {low.lab.key}, "
                f"{low.lab.title}: {step}"
            )
    task, mine = short[0].task.id, short[0].mine
    return (
        f"{lab.key} task {task} has {mine.earned} of {mine.points} points on your own code of all "
        f"labs: lab check {lab.number:02d} --task {task} --mine"
    )


def _ending(key: str) -> str:
    """What is left of a lab whose points are there."""
    if not key:
        return ""
    number = key.removeprefix("lab")
    return (
        f"{key} has its points; see it at work, answer its notebook's questions, hand it in: "
        f"lab demo {number}, lab pack {number}; then "
    )


def _next_in(one: LabProgress) -> str:
    lab, number = one.lab, f"{one.lab.number:02d}"
    for progress in one.tasks:
        if progress.isolated.earned < progress.isolated.points or progress.isolated.edited:
            task = progress.task
            if progress.isolated.edited:
                return (
                    f"{lab.key} task {task.id}: its checks are edited; "
                    f"git checkout labs/{lab.key}, then lab check {number}"
                )
            module = task.symbols[0].partition(":")[0] if task.symbols else lab.first[:-3]
            file = shown(lab.mine / f"{module.replace('.', '/')}.py")
            return (
                f"{lab.key} task {task.id}: {task.title} → {file}; "
                f"lab check {number} --task {task.id}"
            )
    return f"{lab.key} has changed since some of its checks ran: lab check {number}"
