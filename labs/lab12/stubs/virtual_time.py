"""Virtual time: everything that happens in a simulation happens in one order, fixed by a seed."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from nanovllm.resilience.errors import SimulationError
from nanovllm.resilience.kinds import LATE_SECONDS, Fault, Kind

Action = Callable[[], None]


class VirtualTime:
    """A clock, and a list of what is to happen when; nothing waits in earnest.

    Actions run in the order of their moments, those of one moment in the order in which they were
    asked for. A moment in the past counts as now. An action may ask for others, and may let time
    pass (`advance`); what was due meanwhile then runs late, at the new time.

    >>> time, said = VirtualTime(), []
    >>> time.call_later(2.0, lambda: said.append(("b", time())))
    >>> time.call_later(1.0, lambda: said.append(("a", time())))
    >>> time.run()
    >>> said
    [('a', 1.0), ('b', 2.0)]
    """

    def __init__(self) -> None:
        self.now = 0.0
        raise NotImplementedError("lab12 task 1: VirtualTime.__init__")

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass within an action."""
        self.now += seconds

    def call_later(self, seconds: float, action: Action) -> None:
        """Have an action run in so many seconds."""
        raise NotImplementedError("lab12 task 1: VirtualTime.call_later")

    def run(self, until: float | None = None, most: int = 100_000) -> None:
        """Run what is due, up to and including the moment `until`, to the end without it.

        What was due by then runs also where it is late, after `until`. Time then stands at `until`,
        or where it stood, if that is later.

        Raises SimulationError where more than `most` actions run in this call: a simulation that
        never ends.
        """
        raise NotImplementedError("lab12 task 1: VirtualTime.run")


class Wire:
    """Carries messages in virtual time; some, by their numbers from 0, fare badly.

    A message takes `delay` seconds. LOST: it never arrives. LATE: LATE_SECONDS more. DOUBLED: it
    arrives in time, and a second time LATE_SECONDS later; both are asked for when it is sent. Other
    kinds are none of its affair.
    """

    def __init__(
        self, time: VirtualTime, faults: Sequence[Fault] = (), delay: float = 0.01
    ) -> None:
        self.time, self.delay = time, delay
        self.kinds = {fault.step: fault.kind for fault in faults}
        self.sent = 0

    def send(self, receive: Callable[[Any], None], message: Any) -> None:
        """Have `receive(message)` called, once the message is there; `sent` counts it."""
        raise NotImplementedError("lab12 task 1: Wire.send")
