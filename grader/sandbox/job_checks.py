"""In the child: run the lab's checks as the student does, and send each result as it comes."""

from __future__ import annotations

import os
from typing import Any

from grader.course.paths import LABS, ROOT
from grader.sandbox.job import Emit

CARD = 4000
# What checks need besides the course's own plugin. Others that this machine happens to have are
# kept out: they could change a grade, and loading them took longer than many a check.
PLUGINS = ("pytest_timeout", "_hypothesis_pytestplugin")


class Collector:
    """The pytest plugin that sends what the course's own plugin has judged."""

    def __init__(self, emit: Emit) -> None:
        self.emit = emit
        self.config: Any = None
        self.load_cards: dict[str, str] = {}

    def pytest_configure(self, config: Any) -> None:
        self.config = config

    @property
    def _session(self) -> Any:
        return self.config.pluginmanager.get_plugin("labs-running").session

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.load_cards[report.nodeid] = str(report.longrepr)

    def pytest_collection_finish(self) -> None:
        for outcome in list(self._session.outcomes.values()):  # of files that could not be loaded
            self._send(outcome, self.load_cards.get(outcome.check.partition("::")[0], ""))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.emit({"start": nodeid})

    def pytest_runtest_logreport(self, report: Any) -> None:
        outcome = self._session.outcomes.get(report.nodeid)
        if outcome is not None and (report.when == "call" or report.failed):
            self._send(outcome, str(report.longrepr) if report.failed else "")

    def _send(self, outcome: Any, card: str) -> None:
        result = {"item": outcome.check, "status": str(outcome.status)}
        texts = {"reason": outcome.reason, "mistake": outcome.mistake, "card": card}
        self.emit(result | {name: text[:CARD] for name, text in texts.items()})


def run(task: dict[str, Any], emit: Emit) -> None:
    """Run the checks that the task names, at seed 0, with the student's prints thrown away."""
    import pytest

    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    home = LABS.parent  # another place than the course, where the checks are of another release
    os.chdir(home)
    options = [f"--rootdir={home}", f"--confcutdir={home}", f"-c={ROOT / 'pyproject.toml'}"]
    options += ["-q", "-p", "no:cacheprovider", "--color=no", "--capture=no", "--seed", "0"]
    options += [word for plugin in PLUGINS for word in ("-p", plugin)]
    pytest.main([*task["items"], *options, "--record", "/dev/null"], plugins=[Collector(emit)])
    emit({"done": True})
