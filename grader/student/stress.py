"""`lab stress`: a lab's random histories at seed after seed, until one fails."""

from __future__ import annotations

from rich.console import Console
from rich.progress import track

from grader.checks.plugin_collect import STRESS
from grader.checks.run_checks import Record, Run, fresh_processes, run_checks
from grader.course.errors import LabError
from grader.course.lab_toml import Lab
from grader.course.outcome import Status


def first_failure(lab: Lab, seeds: int, console: Console) -> Record | None:
    """What the first failing run recorded and printed, None when all seeds pass."""
    if not any("stress=True" in path.read_text("utf-8") for path in lab.folder.glob("test_*.py")):
        raise LabError(f"{lab.key} has no check with random histories to repeat.")
    runs = [Run(lab.key, lab.mine.parent, STRESS, seed, first=True) for seed in range(1, seeds + 1)]
    records = fresh_processes(run_checks, runs)
    for record in track(records, "random histories", len(runs), console=console, transient=True):
        if any(outcome.status is not Status.PASSED for outcome in record.outcomes):
            return record
    return None


def card(record: Record) -> str:
    """The card in what a run printed, or why there is none."""
    begin, end = record.printed.find("╭─"), record.printed.find("╰─")
    if begin >= 0:
        return record.printed[begin : end + 2]
    return next(o.reason for o in record.outcomes if o.status is not Status.PASSED)
