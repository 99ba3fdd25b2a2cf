"""Faults on purpose: which step of an engine fails, and how, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

from nanovllm.batching.events import EngineEvent


class Kind(Enum):
    """What goes wrong."""

    CRASH = "crash"  # the step raises before it has done anything
    LOST = "lost"  # the step is done, but its events never come
    NAN = "nan"  # every logit of the step is NaN
    NO_START = "no start"  # the next engine cannot be made


class FaultError(RuntimeError):
    """What a fault raises."""


@dataclass(frozen=True)
class Fault:
    """At the step of this number, counted over all engines of a run from 0."""

    step: int
    kind: Kind


def draw_faults(
    seed: int, steps: int, most: int, kinds: Sequence[Kind] = (Kind.CRASH, Kind.LOST, Kind.NAN)
) -> tuple[Fault, ...]:
    """Up to `most` faults in so many steps; from a generator of their own, so that the same
    requests come with and without them."""
    draws = random.Random(f"faults {seed}")
    chosen = draws.sample(range(steps), min(steps, draws.randint(0, most)))
    return tuple(Fault(step, draws.choice(list(kinds))) for step in sorted(chosen))


def shrink(faults: Sequence[Fault], fails: Callable[[Sequence[Fault]], bool]) -> tuple[Fault, ...]:
    """As few of these faults as still fail: leaves out one after another while it does.

    >>> bad = Fault(7, Kind.LOST)
    >>> shrink([Fault(1, Kind.CRASH), bad, Fault(9, Kind.NAN)], lambda some: bad in some)
    (Fault(step=7, kind=<Kind.LOST: 'lost'>),)
    """
    left = tuple(faults)
    for fault in faults:
        without = tuple(one for one in left if one != fault)
        if fails(without):
            left = without
    return left


class FaultyEngine:
    """An engine whose steps fail as planned. `steps` counts those of all engines of a run."""

    def __init__(self, engine: Any, faults: Sequence[Fault], steps: Iterator[int]) -> None:
        self._engine, self._steps = engine, steps
        self._faults = {fault.step: fault.kind for fault in faults}
        self._dead = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def step(self) -> list[EngineEvent]:
        """The engine's step, or its fault. An engine that has died stays dead."""
        kind = self._faults.get(next(self._steps))
        if self._dead or kind is Kind.CRASH:
            self._dead = True
            raise FaultError("a crash on purpose")
        if kind is not Kind.NAN:
            events = self._engine.step()
            if kind is Kind.LOST:
                self._dead = True
                raise FaultError("the events of a step are lost on purpose")
            return events
        execute = self._engine.execute
        self._engine.execute = lambda plan: torch.full_like(execute(plan), float("nan"))
        try:
            return self._engine.step()
        finally:
            del self._engine.execute
