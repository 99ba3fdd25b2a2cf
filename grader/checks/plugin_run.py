"""The running half of the plugin: how each check stands, and a card for each that failed."""

from __future__ import annotations

import random
import sys
import zlib
from collections.abc import Iterator

import pytest

from grader.checks.card import CheckInfo, LateCard, failure_card, shown_path, student_place
from grader.checks.expect import observed
from grader.checks.known_mistakes import KnownMistake, borne_out, recognise
from grader.checks.plugin_session import LabSession
from grader.checks.unwritten import lacking, unwritten
from grader.course.lab_toml import CatalogError, find_lab
from grader.course.outcome import Outcome, Status


def not_written(error: BaseException, lab: str, task: int) -> tuple[Status, str] | None:
    """How a check stands that met a name not written yet, and why, in one line."""
    absent = unwritten(error)
    if absent is None:
        return None
    if absent.lab == lab and absent.task != task:
        return Status.BLOCKED, f"blocked by task {absent.task}"
    place = student_place(error)
    where = f" ({shown_path(place[0])}:{place[1]})" if place else ""
    if absent.path and not place:
        where = f" ({shown_path(absent.path)})"
    return Status.TODO, f"{absent} is not written yet{where}"


def _has_reference(lab: str) -> bool:
    try:
        return find_lab(lab).reference.is_dir()
    except CatalogError:  # the lab itself is not part of this copy
        return False


def seed_global_generators(seed: int) -> None:
    """Code that draws from them sees the same numbers in every run, as its card must."""
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


class NeedsLabError(Exception):
    """The check runs on the code of a lower lab, and this copy has no reference of it."""


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
        seed_global_generators(zlib.crc32(item.name.encode()))
        self.session.world(lab).enter()
        if self.session.chain:
            return
        for lower in lab.task(info.task).runs_on:
            if not _has_reference(lower):
                raise NeedsLabError(
                    f"needs {lower}, of which this copy of the course has no reference; "
                    f"on your own labs: pytest labs/{lab.key} --mine"
                )

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
            report.lab_status = outcome.status.value  # plain, so that it travels between processes
        return report

    def _judge(
        self, info: CheckInfo, error: BaseException | None
    ) -> tuple[Outcome, str | LateCard]:
        def outcome(status: Status, reason: str = "", mistake: str = "") -> Outcome:
            return Outcome(
                info.id, info.lab, info.task, info.title, info.points, status, reason, mistake
            )

        if error is None:
            return outcome(Status.PASSED), ""
        if isinstance(error, NeedsLabError):
            return outcome(Status.BLOCKED, str(error)), str(error)
        standing = not_written(error, info.lab, info.task)
        if standing:
            return outcome(*standing), str(unwritten(error))
        behind = self._blocked_by(info)
        if behind:
            return outcome(Status.BLOCKED, behind), behind
        observation = observed(error)
        self.session.observations[info.id] = observation
        named = recognise(find_lab(info.lab), info.id, observation)
        card = self._card(info, error, named)
        reason = lacking(error) or (str(error).splitlines() or [type(error).__name__])[0]
        names = ",".join(mistake.name for mistake in named)
        return outcome(Status.FAILED, reason, names), card

    def _card(
        self, info: CheckInfo, error: BaseException, named: list[KnownMistake]
    ) -> str | LateCard:
        """The card; it names one mistake as a fact only if the rest of the task bears it out."""
        perhaps = failure_card(info, error, named)
        if len(named) != 1 or not named[0].sure:
            return perhaps
        lab, name = find_lab(info.lab), named[0].name

        def agrees() -> bool:
            outcomes = self.session.of_task(info.lab, info.task)
            whole = len(outcomes) == self.session.collected(info.lab, info.task)
            return whole and borne_out(lab, name, outcomes, self.session.observations)

        return LateCard(failure_card(info, error, named, fact=True), perhaps, agrees)

    def _blocked_by(self, info: CheckInfo) -> str:
        """Of a check that failed: that a task which its own task needs has failed before."""
        if self.session.config.getoption("unblocked"):
            return ""
        needs = find_lab(info.lab).task(info.task).needs
        failed = [task for task in needs if self.session.failed(info.lab, task)]
        return f"blocked by task {failed[0]}" if failed else ""

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        status = getattr(report, "lab_status", None)
        if status == Status.TODO:
            return "to do", "t", "TO DO"
        if status == Status.BLOCKED:
            return "blocked", "b", "BLOCKED"
        return None
