"""Run a list of items in the box until each has a result or a reason for having none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from grader.sandbox.job import Answer

SILENT = "it ended the process before this was done"
Result = dict[str, Any]


@dataclass
class Rounds:
    """Results by item; one that ends its process loses itself, and the others get a new process.

    `work(items)` runs items in one process; `group(item)` names what is loaded together with it,
    `fate(item)` what is lost together with it.
    Nothing is inferred from how a process ended: an item counts when its own result has come.
    """

    work: Callable[[list[str]], Answer]
    group: Callable[[str], str]
    fate: Callable[[str], str] = str
    results: dict[str, Result] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    deserters: int = 6  # items that may end their process before the rest is given up

    def run(self, items: list[str], first: Answer | None = None) -> Rounds:
        """Run all items; `first` is what a process that had them all has answered already."""
        todo = [items] if items else []
        while todo:
            batch = todo.pop(0)
            if self.deserters < 0:
                self._give_up(batch, "too many items before this one ended the process")
                continue
            answer, first = first or self.work(batch), None
            started = self._absorb(answer, set(batch))
            left = [item for item in batch if item not in self.results]
            if not left:
                continue
            why = answer.ended or crash(answer) or SILENT
            finished = any(event.get("done") is True for event in answer.events)
            if started in left and not finished:
                self.deserters -= 1
                self._give_up([i for i in left if self.fate(i) == self.fate(started)], why)
                left = [item for item in left if item not in self.lost]
                todo += self._apart(left, self.group(started))
            elif len({self.group(item) for item in left}) > 1:
                todo += self._apart(left)
            else:
                self._give_up(left, why)
        return self

    def keep(self, answer: Answer, items: list[str]) -> list[str]:
        """Keep what a process has answered that may have been spoilt; the items still to run."""
        self._absorb(answer, set(items))
        return [item for item in items if item not in self.results]

    def _absorb(self, answer: Answer, wanted: set[str]) -> str:
        """Keep the first result of each wanted item; the item that was started last."""
        started = ""
        for event in answer.events:
            item = event.get("item")
            if isinstance(item, str) and item in wanted:
                self.results.setdefault(item, event)
            elif isinstance(event.get("start"), str):
                started = event["start"]
        return started

    def _apart(self, items: list[str], culprit: str = "") -> list[list[str]]:
        """The items in groups of their own; with a culprit, its group and all the others."""
        groups: dict[str, list[str]] = {}
        for item in items:
            group = self.group(item)
            groups.setdefault(str(group == culprit) if culprit else group, []).append(item)
        return list(groups.values())

    def _give_up(self, items: list[str], why: str) -> None:
        self.lost |= {item: why for item in items if item not in self.results}


def crash(answer: Answer) -> str:
    """The last line of a traceback of our own code in the child, "" where there is none."""
    found = [event["crash"] for event in answer.events if isinstance(event.get("crash"), str)]
    return (found[0].strip().splitlines() or [""])[-1][:200] if found else ""
