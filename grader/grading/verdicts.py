"""From what came out of the box to the report; nothing is trusted to be well formed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grader.course.outcome import Status
from grader.grading.left_out import shown
from grader.grading.report import (
    AGREES,
    BROKEN,
    DIFFERS,
    RAISED,
    STOPPED,
    CheckReport,
    ScenarioReport,
)
from grader.grading.run_items import SILENT, Result, Rounds

TEXT = 4000
# A student learns of a hidden scenario's end what their own code could not have phrased: no words
# of a crash, no exit status, no number, and of errors the name only where it is a usual one.
ENDS = {
    "it took more than ": "it took too long",
    "the submission used up ": "the submission used up its time",
    "it used more than ": "it used too much memory",
    "it started more than ": "it started too many processes or threads",
    "it sent more than ": "it sent too much",
    "it wrote more than ": "it wrote too much",
    "too many items ": "too many before it ended the process",
}
USUAL = ("AssertionError", "AttributeError", "ImportError", "IndexError", "KeyError", "MemoryError",
         "NameError", "NotImplementedError", "RecursionError", "RuntimeError", "TypeError",
         "ValueError", "ZeroDivisionError")  # fmt: skip


def check_report(entry: Any, result: Result, nothing: str, own: Sequence[str]) -> CheckReport:
    """own: what was handed in, as text."""
    status = result.get("status")
    if nothing or status not in set(map(str, Status)):
        why = nothing or shown(str(result.get("reason", "no result came"))[:TEXT], own)
        return CheckReport(entry.id, entry.title, entry.points, str(Status.FAILED), why)
    texts = {
        name: shown(str(result.get(name, ""))[:TEXT], own) for name in ("reason", "mistake", "card")
    }
    return CheckReport(entry.id, entry.title, entry.points, str(status), **texts)


def draw(item: str, rounds: Rounds, agreed: dict[str, dict[str, Any]]) -> tuple[str, str, str]:
    result = rounds.results.get(item)
    if result is None:
        why = rounds.lost.get(item, "no result came")
        return STOPPED, _plain_end(why), why
    verdict = agreed.get(item, {})
    if "broken" in verdict:
        return BROKEN, f"the reference raised {verdict['broken']}", ""
    if "data" not in result:
        todo = str(result.get("todo", ""))
        raised = result.get("raised")
        return RAISED, f"it raised {_own_name(raised)}", todo or str(raised)[:TEXT]
    return (AGREES if verdict["agrees"] is True else DIFFERS), "", verdict["where"]


def _plain_end(why: str) -> str:
    return next((told for start, told in ENDS.items() if why.startswith(start)), SILENT)


def _own_name(error: object) -> str:
    """The name of a usual error: others, or one of many, could carry the inputs out."""
    return next((name for name in USUAL if error == name), "an error of its own")


def scenario_report(name: str, draws: list[tuple[str, str, str]]) -> ScenarioReport:
    """A scenario agrees when all its draws do; else it is its first draw that does not."""
    usable = [draw for draw in draws if draw[0] != BROKEN] or draws
    return ScenarioReport(name, *next((d for d in usable if d[0] != AGREES), usable[0]))
