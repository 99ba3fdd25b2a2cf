"""What one check did in one run: the record that plugin, board and autograder share."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum


class Status(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    TODO = "todo"  # the task's own NotImplementedError: not written yet
    BLOCKED = "blocked"  # a task that this one needs has failed


@dataclass(frozen=True)
class Outcome:
    """One check's result; `reason` is one line, `mistake` the name of a recognised mistake."""

    check: str  # "lab01/test_1_train_bpe.py::test_ties"
    lab: str
    task: int
    title: str
    points: int
    status: Status
    reason: str = ""
    mistake: str = ""

    @property
    def earned(self) -> int:
        return self.points if self.status is Status.PASSED else 0

    def to_json(self) -> dict[str, object]:
        return asdict(self)
