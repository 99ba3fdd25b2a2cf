"""What is asked of one process of a submission, and what it answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Emit = Callable[[dict[str, Any]], None]  # sends one event out of the box


class BoxError(Exception):
    """The worker could not be started, or has gone: not the student's fault."""


@dataclass(frozen=True)
class Work:
    """A submission (files by path below its root, in base64) and tasks for one process, in order.

    A task is handed over when the one before it is done: what it holds is not in the process, nor
    anywhere that the process can reach, while results of the earlier ones still count.
    """

    code: str
    tasks: list[dict[str, Any]]
    files: dict[str, str] = field(default_factory=dict)


@dataclass
class Answer:
    """The events of one task, and why it ended early ("" when it did not).

    cost: bytes that the results among them take.
    """

    events: list[dict[str, Any]] = field(default_factory=list)
    ended: str = ""
    cost: int = 0


@dataclass
class Answers:
    """One answer for each task that was begun."""

    of_tasks: list[Answer] = field(default_factory=list)
    seconds: float = 0.0  # on the clock of the box: without the worker's own start
