"""The collecting half of the plugin: which labs run, in which world, and files that cannot load."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from grader.checks.card import DoesNotEnd, load_failure_card, shown_path
from grader.checks.plugin_run import not_written
from grader.checks.plugin_session import LabSession
from grader.checks.runaway import Stopping
from grader.checks.unwritten import stand_in, unwritten
from grader.course import checks_json
from grader.course.errors import LabError
from grader.course.hardware import obstacle
from grader.course.lab_toml import CatalogError, Lab, find_lab, labs
from grader.course.outcome import Outcome, Status
from grader.course.paths import LABS
from grader.student_files import lab_folder

CANNOT_LOAD = "the code cannot be loaded"
STRESS = "stress"  # selects, with -k, the checks that `lab stress` repeats
# A check takes a second or two; one still running by then is in an endless loop.
RUNAWAY_SECONDS = 30
LOADING = 4  # times as long may a file take to be loaded, and torch with it from a slow disk


def runaway_seconds() -> float:
    """How long a check may run: longer on a machine on which many things want to run."""
    try:
        load = os.getloadavg()[0] / (os.cpu_count() or 1)
    except OSError:  # nothing says how busy it is
        load = 1.0
    return RUNAWAY_SECONDS * max(1.0, load)


def lab_of(path: Path) -> Lab | None:
    """The lab in whose folder `path` lies, whatever links lead there."""
    path = path.resolve()
    if not path.is_relative_to(LABS) or path == LABS:
        return None
    try:
        return find_lab(path.relative_to(LABS).parts[0])
    except CatalogError:
        return None


class Gathering:
    """Starts the labs that are named, leaves out those not started, loads each in its world."""

    def __init__(self, session: LabSession) -> None:
        self.session = session
        self.notes: list[str] = []
        self.stopping = Stopping(session)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        config = self.session.config
        if self.session.reference or config.option.collectonly:
            return
        for lab in labs():
            if self._named(lab) and obstacle(lab):
                raise pytest.UsageError(obstacle(lab))
            if self._named(lab) and not lab.started:
                try:
                    files = lab_folder.start(lab)
                except LabError as error:
                    raise pytest.UsageError(str(error)) from None
                names = ", ".join(file.name for file in files)
                self.notes.append(
                    f"{lab.key} started: {shown_path(lab.mine)}/ has {names}; "
                    f"open {lab.first} first, and the handout {shown_path(lab.folder)}/README.md"
                )

    def _named(self, lab: Lab) -> bool:
        return any(path.is_relative_to(lab.folder) for path in self._arguments())

    def _covered(self, lab: Lab) -> bool:
        """Whether the lab is among what was asked for, and not a neighbour that pytest met."""
        return any(lab.folder.is_relative_to(path) for path in self._arguments())

    def _arguments(self) -> list[Path]:
        config = self.session.config
        here = Path(config.invocation_params.dir)
        return [(here / arg.partition("::")[0]).resolve() for arg in config.args]

    def pytest_report_header(self) -> list[str]:
        return self.notes

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        lab = lab_of(collection_path)
        if lab is None or self.session.reference or lab.started:
            return None
        if collection_path.resolve() != lab.folder:
            return None
        if self._covered(lab):
            self.session.not_started.append(lab.key)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> pytest.CollectReport | None:
        lab = lab_of(collector.path)
        if not isinstance(collector, pytest.Module) or lab is None:
            return None
        self.session.world(lab).enter()
        error = self._load(collector)
        if error is None:
            return None
        self._file_failed(lab, collector.path, error)
        absent = unwritten(error)
        card = str(absent) if absent else load_failure_card(lab.key, error)
        return pytest.CollectReport(collector.nodeid, "failed", card, [])

    def _load(self, collector: pytest.Module) -> BaseException | None:
        """Import a file of checks; a public name not written yet fails the checks that use it."""
        while True:
            try:
                with self.stopping.loading(LOADING * runaway_seconds()):
                    collector.obj  # noqa: B018 - imports the module, so that the error is at hand
            except (Exception, SystemExit, DoesNotEnd) as wrapped:
                error = wrapped.__cause__ or wrapped
            else:
                return None
            if self.session.reference or not stand_in(error):
                return error
            for name, module in list(sys.modules.items()):
                if getattr(module, "__file__", None) == str(collector.path):
                    del sys.modules[name]  # half of it was loaded

    def _file_failed(self, lab: Lab, path: Path, error: BaseException) -> None:
        first = (str(error).splitlines() or [""])[0]
        reason = f"{CANNOT_LOAD}: {type(error).__name__}: {first}"
        for check in checks_json.read(lab).checks.values():
            if check.file == path.name:
                standing = not_written(error, lab.key, check.task)
                status, why = standing or (Status.FAILED, reason)
                self.session.note(
                    Outcome(
                        check=check.id,
                        lab=lab.key,
                        task=check.task,
                        title=check.title,
                        points=check.points,
                        status=status,
                        reason=why,
                    )
                )

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        marker = item.get_closest_marker("check")
        lab = lab_of(item.path)
        if marker is None or lab is None:
            return
        item.extra_keyword_matches.add(f"task{marker.kwargs['task']}")
        if marker.kwargs.get("stress"):
            item.extra_keyword_matches.add(STRESS)
        item.add_marker(pytest.mark.timeout(runaway_seconds(), func_only=True))
        self.session.add(item, lab, marker)
