"""A pytest plugin: `--collect-only` lists a lab that is not started, and imports nothing of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from grader.checks.plugin_collect import lab_of
from grader.course.errors import LabError
from grader.course.integrity import read


class Listed(pytest.Item):
    """A check's name, with its marker. It is listed, and never run."""

    def runtest(self) -> None:
        raise NotImplementedError

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, self.name


class ListedFile(pytest.File):
    """A file of checks, as `checks.json` has it."""

    def collect(self) -> Iterator[Listed]:
        lab = lab_of(self.path)
        assert lab is not None
        try:
            checks = read(lab).checks.values()
        except LabError as error:
            raise self.CollectError(str(error)) from None
        for check in checks:
            if check.file == self.path.name:
                one = Listed.from_parent(self, name=check.name)
                one.add_marker(
                    pytest.mark.check(task=check.task, points=check.points, title=check.title)
                )
                yield one


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> Iterator[None]:
    found = yield
    option, lab = parent.config.option, lab_of(file_path)
    if not found or not option.collectonly or option.reference or lab is None or lab.started:
        return found
    return [ListedFile.from_parent(parent, path=file_path)]
