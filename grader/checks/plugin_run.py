"""The running half of the plugin: blocked tasks, and a card for every failed check."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from grader.checks.card import CheckInfo, failure_card, shown_path, student_place
from grader.checks.expect import ExpectationFailed
from grader.checks.fingerprint import fingerprint
from grader.checks.known_mistakes import recognise
from grader.checks.plugin_session import LabSession
from grader.course.lab_toml import find_lab
from grader.course.outcome import Outcome, Status

TODO = re.compile(r"lab(\d\d) task (\d+): ")


class Blocked(Exception):
    """A check was not run because a task that it needs has failed."""


class Running:
    """Puts each check in its lab's world, judges how it ended, and writes its card."""

    def __init__(self, session: LabSession) -> None:
        self.session = session

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        info = self.session.info(item)
        if info is None:
            return
        lab = find_lab(info.lab)
        self.session.world(lab).enter()
        if self.session.config.getoption("unblocked"):
            return
        for needed in lab.task(info.task).needs:
            if self.session.failed(lab.key, needed):
                raise Blocked(f"blocked by task {needed}")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Iterator[None]:
        report = yield
        info = self.session.info(item)
        if info is None or call.when == "teardown" or (call.when == "setup" and not call.excinfo):
            return report
        error = call.excinfo.value if call.excinfo else None
        outcome, text = self._judge(info, error)
        self.session.note(outcome)
        if error is not None:
            # Also for a skip: a check that did not run has not passed.
            report.outcome = "failed"
            report.longrepr = text
            report.lab_status = outcome.status
        return report

    def _judge(self, info: CheckInfo, error: BaseException | None) -> tuple[Outcome, str]:
        def outcome(status: Status, reason: str = "", mistake: str = "") -> Outcome:
            return Outcome(
                info.id, info.lab, info.task, info.title, info.points, status, reason, mistake
            )

        if error is None:
            return outcome(Status.PASSED), ""
        if isinstance(error, Blocked):
            return outcome(Status.BLOCKED, str(error)), str(error)
        if isinstance(error, NotImplementedError) and TODO.match(str(error)):
            place = student_place(error)
            where = f" ({shown_path(place[0])}:{place[1]})" if place else ""
            return outcome(Status.TODO, f"{error} is not written yet{where}"), str(error)
        if isinstance(error, ExpectationFailed):
            observation = {"at": error.at, "seen": error.seen}
        else:
            observation = {"at": "raised", "seen": fingerprint(error)}
        self.session.observations[info.id] = observation
        named = recognise(find_lab(info.lab), info.id, observation)
        card = failure_card(info, error, [mistake.says for mistake in named])
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        names = ",".join(mistake.name for mistake in named)
        return outcome(Status.FAILED, reason, names), card

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        status = getattr(report, "lab_status", None)
        if status is Status.TODO:
            return "to do", "t", "TO DO"
        if status is Status.BLOCKED:
            return "blocked", "b", "BLOCKED"
        return None
