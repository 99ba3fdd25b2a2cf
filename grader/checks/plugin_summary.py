"""The closing half of the plugin: the summary by task, the board's state, the record."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from grader.checks.plugin_collect import CANNOT_LOAD
from grader.checks.plugin_session import LabSession
from grader.checks.runaway import left_behind
from grader.course import checks_json
from grader.course.hardware import NOT_VERIFIED
from grader.course.lab_toml import Lab, find_lab, labs
from grader.course.outcome import Outcome, Status
from grader.student_files import lab_state


class Closing:
    """Says how each task stands, and keeps the outcomes."""

    def __init__(self, session: LabSession) -> None:
        self.session = session
        self.digests: dict[str, str] = {}
        self.warnings: list[str] = []
        self.interrupted = False
        self.status = 0

    def pytest_keyboard_interrupt(self) -> None:
        self.interrupted = True

    def pytest_sessionstart(self) -> None:
        # Before the run: a file saved while it runs was not what the run has seen.
        self.digests = {lab.key: lab_state.digest(lab) for lab in labs() if lab.started}

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for key in sorted({outcome.lab for outcome in self.session.outcomes.values()}):
            self._lab(terminalreporter, find_lab(key))
        if self.session.not_started:
            names = ", ".join(self.session.not_started)
            first = self.session.not_started[0].removeprefix("lab")
            terminalreporter.write_line(
                f"not started, so not run: {names} (`lab start {first}` starts one)"
            )
        for warning in self.warnings:
            terminalreporter.write_line(f" ! {warning}", yellow=True)

    def _lab(self, reporter: pytest.TerminalReporter, lab: Lab) -> None:
        reporter.section(f"{lab.key} {lab.title} ({self.session.mode})")
        earned = total = 0
        for task in lab.tasks:
            outcomes = self.session.of_task(lab.key, task.id)
            if not outcomes:
                continue
            got, most = sum(o.earned for o in outcomes), sum(o.points for o in outcomes)
            earned, total = earned + got, total + most
            whole = not self.interrupted or len(outcomes) == self.session.collected(
                lab.key, task.id
            )
            mark = "✓" if got == most and whole else "·"
            reporter.write_line(
                f" {mark} task {task.id}  {task.title:<28} {got:>3}/{most:<3} "
                + (first_reason(outcomes) if whole else "interrupted"),
                green=got == most and whole,
            )
        reporter.write_line(f"   {'all':<7}{'':<28} {earned:>3}/{total}", bold=True)
        reasons = {outcome.reason for outcome in self.session.outcomes.values()}
        if any(task.machine for task in lab.tasks) and NOT_VERIFIED in reasons:
            reporter.write_line(f" ! run in Triton's interpreter: {NOT_VERIFIED}", yellow=True)
        for problem in checks_json.problems(lab):
            reporter.write_line(f" ! {problem}", yellow=True)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self, config: pytest.Config) -> None:
        """What still runs in a thread of the student's would keep the process for ever."""
        if config.getoption("record") or hasattr(config, "workerinput"):
            return  # others go on in this process
        left = left_behind()
        if left:
            print(
                f" ! left behind, still running: {', '.join(left)}; end the threads that you start"
            )
            sys.stdout.flush()
            os._exit(self.status)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self.status = int(exitstatus)
        config = self.session.config
        if config.option.collectonly:
            return
        record = config.getoption("record")
        if record:
            outcomes = [outcome.to_json() for outcome in self.session.outcomes.values()]
            data = {"outcomes": outcomes, "observations": self.session.observations}
            Path(record).write_text(json.dumps(data, indent=1), encoding="utf-8")
        # The board shows seed 0: other seeds, the reference and recorded runs are not its own.
        if not (self.session.reference or record or self.session.seed):
            self._tell_the_board()

    def _tell_the_board(self) -> None:
        mode = "mine" if self.session.chain else "isolated"
        for key in sorted({outcome.lab for outcome in self.session.outcomes.values()}):
            outcomes = [o for o in self.session.outcomes.values() if o.lab == key]
            measured_on = self.digests.get(key) or lab_state.digest(find_lab(key))
            warning = lab_state.record_run(key, mode, outcomes, measured_on)
            self.warnings += [warning] if warning else []


def first_reason(outcomes: list[Outcome]) -> str:
    """Why a task is not done, in one line: a failure before a missing body before a block."""
    for status in (Status.FAILED, Status.TODO, Status.BLOCKED):
        found = [outcome for outcome in outcomes if outcome.status is status]
        if not found:
            continue
        if status is not Status.FAILED or found[0].reason.startswith(CANNOT_LOAD):
            return found[0].reason
        more = f" (+{len(found) - 1} more)" if len(found) > 1 else ""
        return f"failed: {found[0].title}{more}"
    return ""
