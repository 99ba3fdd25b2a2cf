"""Three hints a check, from weak to strong; each is asked for and costs some of its points.

The cost is shown on the board beside the full points and takes nothing away from them.
"""

from __future__ import annotations

from dataclasses import dataclass

from grader.checks import hints_file
from grader.course import integrity
from grader.course.checks_json import CheckEntry
from grader.course.errors import LabError
from grader.course.lab_toml import CatalogError, Lab
from grader.course.outcome import Status
from grader.student_files.state_records import LabState

# Share of a check's points spent once this many hints are taken: a nudge is nearly free, and
# even the idea itself leaves something for writing it.
SHARES = (0.0, 0.1, 0.3, 0.6)


def cost(points: int, rung: int) -> float:
    """Points spent on a check after `rung` of its three hints.

    >>> [cost(5, rung) for rung in (0, 1, 2, 3)]
    [0.0, 0.5, 1.5, 3.0]
    """
    return round(points * SHARES[max(0, min(rung, 3))], 1)


@dataclass(frozen=True)
class Ladder:
    """One check's hints and how many of them were taken."""

    check: CheckEntry
    hints: tuple[str, ...]
    taken: int

    @property
    def shown(self) -> tuple[str, ...]:
        return self.hints[: self.taken]

    @property
    def is_used_up(self) -> bool:
        return self.taken >= len(self.hints)

    @property
    def next_cost(self) -> float:
        """Points that the next hint costs in addition."""
        spent = cost(self.check.points, self.taken)
        return round(cost(self.check.points, self.taken + 1) - spent, 1)


def ladder(lab: Lab, wanted: str, entry: LabState) -> Ladder:
    """The ladder of a check named by name or id, or of a task's first check that does not pass."""
    check = _of_task(lab, int(wanted), entry) if wanted.isdigit() else _by_name(lab, wanted)
    texts = hints_file.read(lab).get(f"{check.file}::{check.name}", ())
    if not texts:
        raise LabError(
            f"{lab.key}/hints.txt has no hints of {check.name}; `git checkout labs/{lab.key}` "
            "restores it (maintainers: `python -m grader build`)."
        )
    return Ladder(check, texts, min(entry.hints.get(check.id, 0), len(texts)))


def _of_task(lab: Lab, task: int, entry: LabState) -> CheckEntry:
    lab.task(task)
    checks = integrity.checks_of(lab, task)
    results = entry.results["isolated"]
    passed = {name for name, result in results.items() if result.status is Status.PASSED}
    open_checks = [check for check in checks if check.id not in passed]
    # A check that failed comes before one that never ran or waits for code not written yet.
    failed = [c for c in open_checks if c.id in results and results[c.id].status is Status.FAILED]
    if open_checks:
        return (failed or open_checks)[0]
    if not checks:
        raise LabError(
            f"{lab.key} has no list of checks for task {task}; `git checkout labs/{lab.key}` "
            "restores it (maintainers: `python -m grader build`)."
        )
    names = ", ".join(check.name for check in checks)
    raise LabError(f"every check of task {task} passes; name one to read its hints: {names}.")


def _by_name(lab: Lab, wanted: str) -> CheckEntry:
    known = list(integrity.read(lab).checks.values())
    for same in (lambda c: wanted in (c.id, c.name), lambda c: wanted in c.id):
        found = [check for check in known if same(check)]
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(check.id for check in found)
            raise LabError(f"{wanted!r} fits several checks; name one of them: {names}.")
    if not known:
        raise CatalogError(f"{lab.key} has no list of checks; `git checkout labs/{lab.key}`.")
    number = f"{lab.number:02d}"
    raise LabError(
        f"{lab.key} has no check {wanted!r}; `lab hint {number} 1` takes the first open check of "
        f"task 1, and `lab list {number}` names them all."
    )
