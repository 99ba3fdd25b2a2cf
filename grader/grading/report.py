"""What one submission of one lab earned, task by task, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from grader.checks.kernel_text import ALONE

PASSED, FAILED, BLOCKED = "passed", "failed", "blocked"
AGREES, DIFFERS, RAISED, STOPPED, BROKEN = "agrees", "differs", "raised", "stopped", "broken"


@dataclass(frozen=True)
class CheckReport:
    """One visible check as the student sees it, run at the board's seed in the sandbox."""

    id: str
    title: str
    points: int
    status: str
    reason: str = ""
    mistake: str = ""
    card: str = ""

    @property
    def name(self) -> str:
        return self.id.rpartition("::")[2]

    @property
    def passed(self) -> bool:
        return self.status == PASSED


@dataclass(frozen=True)
class ScenarioReport:
    """One hidden scenario at this student's seeds; `where` is for the instructor alone."""

    name: str
    status: str
    said: str = ""
    where: str = ""


@dataclass(frozen=True)
class TaskReport:
    """One task: its points are those of its passed checks, as far as the scenarios bear them out.

    A check runs beside the student's code and could be faked; a scenario's verdict is made where
    that code is not. So a task earns min(points of passed checks, maximum x agreeing scenarios /
    scenarios): with one scenario, nothing unless it agrees. Nothing, too, where kernels that were
    run by themselves do not: then anything may have computed what other scenarios saw.
    """

    id: int
    title: str
    max_points: float
    checks: tuple[CheckReport, ...]
    scenarios: tuple[ScenarioReport, ...]

    @property
    def claimed(self) -> float:
        """The points of the checks that passed."""
        return float(sum(check.points for check in self.checks if check.passed))

    @property
    def share(self) -> float:
        """The part of the scenarios that agrees; those that fail on the reference do not count."""
        usable = [scenario for scenario in self.scenarios if scenario.status != BROKEN]
        if any(s.status != AGREES for s in usable if s.name.startswith(ALONE)):
            return 0.0
        return sum(s.status == AGREES for s in usable) / len(usable) if usable else 1.0

    @property
    def points(self) -> float:
        return round(min(self.claimed, self.max_points * self.share), 2)

    @property
    def blocked(self) -> str:
        """What keeps every check from running, where it is the same for all; else ""."""
        reasons = {check.reason for check in self.checks if check.status == BLOCKED}
        all_are = all(check.status == BLOCKED for check in self.checks)
        return reasons.pop() if all_are and len(reasons) == 1 else ""

    @property
    def cards(self) -> tuple[str, ...]:
        """Of checks that failed; one whose code is not written or is blocked has its line."""
        return tuple(check.card for check in self.checks if check.card and check.status == FAILED)

    @property
    def reason(self) -> str:
        """Why points are missing, in one line; "" when none are."""
        if self.points >= self.max_points:
            return ""
        bad = [s for s in self.scenarios if s.status not in (AGREES, BROKEN)]
        failed = [check for check in self.checks if not check.passed]
        parts = []
        if failed:
            first = failed[0]
            more = f" (+{len(failed) - 1} more)" if len(failed) > 1 else ""
            parts.append(f"{first.title}{more}: {first.reason or first.status}")
        if bad and self.points < self.claimed:
            said = f" ({bad[0].said})" if bad[0].said else ""
            parts.append(
                f"{len(bad)} of {len(self.scenarios)} hidden scenarios "
                f"{'differs' if len(bad) == 1 else 'differ'} from the reference{said}"
            )
        return "; ".join(parts)


@dataclass(frozen=True)
class LabReport:
    """One submission of one lab; every task is there, whatever happened."""

    lab: str
    title: str
    student: str
    tasks: Mapping[int, TaskReport]
    sandbox: str
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0
    key: str = ""  # what the result was measured on
    lost: bool = False  # the grader's own trouble: not kept, grade again
    release: str = ""  # whose checks these were, where they are not today's

    @property
    def points(self) -> float:
        return round(sum(task.points for task in self.tasks.values()), 2)

    @property
    def max_points(self) -> float:
        return float(sum(task.max_points for task in self.tasks.values()))

    @property
    def unsandboxed(self) -> bool:
        return self.sandbox == "limits"

    def to_json(self) -> dict[str, Any]:
        data = {name: value for name, value in vars(self).items() if name != "tasks"}
        tasks = {str(id): asdict(task) | {"points": task.points, "reason": task.reason}
                 for id, task in self.tasks.items()}  # fmt: skip
        return {**data, "warnings": list(self.warnings), "points": self.points,
                "max_points": self.max_points, "tasks": tasks}  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LabReport:
        tasks = {
            int(id): TaskReport(
                id=int(id),
                title=task["title"],
                max_points=task["max_points"],
                checks=tuple(CheckReport(**check) for check in task["checks"]),
                scenarios=tuple(ScenarioReport(**scenario) for scenario in task["scenarios"]),
            )
            for id, task in data["tasks"].items()
        }
        rest = {k: v for k, v in data.items() if k not in ("tasks", "points", "max_points")}
        return cls(**{**rest, "tasks": tasks, "warnings": tuple(data["warnings"])})
