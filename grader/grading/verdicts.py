"""From what came out of the box to the report; nothing is trusted to be well formed."""

from __future__ import annotations

import builtins
from typing import Any

from grader.grading.report import (
    AGREES,
    BROKEN,
    DIFFERS,
    RAISED,
    STOPPED,
    CheckReport,
    ScenarioReport,
)
from grader.grading.rounds import Result, Rounds
from grader.outcome import Status

TEXT = 4000


def check_report(entry: Any, result: Result, nothing: str) -> CheckReport:
    status = result.get("status")
    if nothing or status not in set(map(str, Status)):
        why = nothing or str(result.get("reason", "no result came"))[:TEXT]
        return CheckReport(entry.id, entry.title, entry.points, str(Status.FAILED), why)
    texts = {name: str(result.get(name, ""))[:TEXT] for name in ("reason", "mistake", "card")}
    return CheckReport(entry.id, entry.title, entry.points, str(status), **texts)


def draw(item: str, rounds: Rounds, agreed: dict[str, dict[str, Any]]) -> tuple[str, str, str]:
    result = rounds.results.get(item)
    if result is None:
        return STOPPED, rounds.lost.get(item, "no result came"), ""
    verdict = agreed.get(item, {})
    if "broken" in verdict:
        return BROKEN, f"the reference raised {verdict['broken']}", ""
    if "data" not in result:
        todo = str(result.get("todo", ""))
        return RAISED, f"it raised {_own_name(result.get('raised'))}", todo
    return (AGREES if verdict["agrees"] is True else DIFFERS), "", verdict["where"]


def _own_name(error: object) -> str:
    """The name of an error where it is Python's own: other names could carry the inputs out."""
    known = getattr(builtins, error, None) if isinstance(error, str) else None
    ours = isinstance(known, type) and issubclass(known, BaseException)
    return str(error) if ours else "an error of its own"


def scenario_report(name: str, draws: list[tuple[str, str, str]]) -> ScenarioReport:
    """A scenario agrees when all its draws do; else it is its first draw that does not."""
    usable = [draw for draw in draws if draw[0] != BROKEN] or draws
    return ScenarioReport(name, *next((d for d in usable if d[0] != AGREES), usable[0]))
