"""Faults on purpose: which step of an engine fails, and how, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from nanovllm.batching.events import EngineEvent
from nanovllm.generation.latency import ManualClock
from nanovllm.resilience.kinds import (
    DEATHS,
    HANG_SECONDS,
    JUMP_SECONDS,
    SLOW_SECONDS,
    Fault,
    FaultError,
    Kind,
)


def draw_faults(
    seed: int, steps: int, most: int, kinds: Sequence[Kind] = DEATHS
) -> tuple[Fault, ...]:
    """Faults at 0 to `most` different steps below `steps`, in order of their steps.

    The number of faults, their steps and each one's kind depend on the seed, and on nothing else:
    the random generators of others are neither read nor moved, so that the same requests come
    with and without faults.

    >>> draw_faults(7, 40, 3) == draw_faults(7, 40, 3)
    True
    """
    raise NotImplementedError("lab12 task 1: draw_faults")


def shrink(faults: Sequence[Fault], fails: Callable[[Sequence[Fault]], bool]) -> tuple[Fault, ...]:
    """Of these faults so few that `fails` no longer holds when any one of them is left out.

    `fails(faults)` holds for all of them together, and runs a whole simulation: for n faults it is
    asked at most n * (n + 1) / 2 times. The order stays. Where it fails without any, none are left.

    >>> bad = Fault(7, Kind.LOST)
    >>> shrink([Fault(1, Kind.CRASH), bad, Fault(9, Kind.NAN)], lambda some: bad in some)
    (Fault(step=7, kind=<Kind.LOST: 'lost'>),)
    """
    raise NotImplementedError("lab12 task 1: shrink")


class FaultyEngine:
    """An engine whose steps fail as planned.

    `steps` counts the steps of all engines of a run; SLOW, HANG and CLOCK_JUMP move the
    `clock`.
    """

    def __init__(
        self,
        engine: Any,
        faults: Sequence[Fault],
        steps: Iterator[int],
        clock: ManualClock | None = None,
    ) -> None:
        self._engine, self._steps = engine, steps
        self._time = clock or ManualClock()
        self._faults = {fault.step: fault.kind for fault in faults}
        self._dead = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def step(self) -> list[EngineEvent]:
        """The engine's step, or its fault; each call takes the next number of `steps`.

        - CRASH raises FaultError, and the engine's own step is not run
        - LOST runs it, drops its events, and raises FaultError
        - HANG moves the clock by HANG_SECONDS, then is a CRASH
        - NAN: `engine.execute` gives NaN in every place, of the same shape and kind (numpy or
          torch), in this step only
        - SLOW moves the clock by SLOW_SECONDS, CLOCK_JUMP by JUMP_SECONDS; then the usual step
        - STORE_FULL: `engine.store.can_admit` is False for everybody, in this step only
        - other kinds are none of a step's: the usual step

        After CRASH, LOST or HANG this engine is dead: each further step takes its number and raises
        FaultError, whatever was planned for it, and does nothing else.
        """
        raise NotImplementedError("lab12 task 1: FaultyEngine.step")

    def _with(self, owner: Any, name: str, changed: Callable[..., Any]) -> list[EngineEvent]:
        """A step in which a method of `owner` is another one (given)."""
        before = vars(owner).copy()  # somebody may have put another one there already
        setattr(owner, name, changed)
        try:
            return self._engine.step()
        finally:
            if name in before:
                setattr(owner, name, before[name])
            else:
                delattr(owner, name)
