"""What one run of pytest over the checks of one or more labs knows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from grader.checks.card import CheckInfo
from grader.checks.isolated_imports import World
from grader.course.hardware import unverified
from grader.course.lab_toml import Lab, find_lab
from grader.course.outcome import Outcome, Status


class LabSession:
    """Options, worlds, checks and outcomes of one run."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.reference: bool = config.option.reference
        self.chain: bool = config.option.mine
        self.seed: int = config.option.seed
        self.outcomes: dict[str, Outcome] = {}
        self.observations: dict[str, dict[str, Any]] = {}
        self.not_started: list[str] = []
        self._worlds: dict[str, World] = {}
        self._checks: dict[str, CheckInfo] = {}

    @property
    def mode(self) -> str:
        return "reference" if self.reference else "your whole chain" if self.chain else "isolated"

    def world(self, lab: Lab) -> World:
        """The assembly in which the checks of a lab see the package."""
        code = "reference" if self.reference else "mine" if self.chain else lab.key
        return self._worlds.setdefault(code, World(code))

    def add(self, item: pytest.Item, lab: Lab, marker: pytest.Mark) -> None:
        """Take a collected test as a check."""
        values = marker.kwargs
        self._checks[item.nodeid] = CheckInfo(
            item.nodeid, lab.key, values["task"], values["title"], values["points"], self.seed
        )

    def info(self, item: pytest.Item) -> CheckInfo | None:
        """The check behind a test, None for any other test."""
        return self._checks.get(item.nodeid)

    def note(self, outcome: Outcome) -> None:
        """Keep an outcome; a pass in the interpreter says what it has not shown."""
        if outcome.status is Status.PASSED:
            outcome = replace(outcome, reason=unverified(find_lab(outcome.lab).task(outcome.task)))
        self.outcomes[outcome.check] = outcome

    def of_task(self, lab: str, task: int) -> list[Outcome]:
        """The outcomes so far of one task."""
        return [o for o in self.outcomes.values() if o.lab == lab and o.task == task]

    def collected(self, lab: str, task: int) -> int:
        """How many checks of one task this run has."""
        return sum((info.lab, info.task) == (lab, task) for info in self._checks.values())

    def failed(self, lab: str, task: int) -> bool:
        """True once a check of the task did anything but pass."""
        return any(outcome.status is not Status.PASSED for outcome in self.of_task(lab, task))
