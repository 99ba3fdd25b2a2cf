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
        ### BEGIN SOLUTION
        self._due: list[tuple[float, int, Action]] = []
        self._numbers = count()
        ### END SOLUTION

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass within an action."""
        self.now += seconds

    def call_later(self, seconds: float, action: Action) -> None:
        """Have an action run in so many seconds."""
        ### BEGIN SOLUTION
        moment = self.now + max(0.0, seconds)
        heapq.heappush(self._due, (moment, next(self._numbers), action))
        ### END SOLUTION

    def run(self, until: float | None = None, most: int = 100_000) -> None:
        """Run what is due, up to and including the moment `until`, to the end without it.

        What was due by then runs also where it is late, after `until`. Time then stands at `until`,
        or where it stood, if that is later.

        Raises SimulationError where more than `most` actions run in this call: a simulation that
        never ends.
        """
        ### BEGIN SOLUTION
        done = 0
        while self._due and (until is None or self._due[0][0] <= until):
            if done == most:
                raise SimulationError(f"{most} actions have run, and the simulation goes on.")
            moment, _, action = heapq.heappop(self._due)
            self.now = max(self.now, moment)
            action()
            done += 1
        if until is not None:
            self.now = max(self.now, until)
        ### END SOLUTION


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
        ### BEGIN SOLUTION
        kind = self.kinds.get(self.sent)
        self.sent += 1
        moments = {
            Kind.LOST: [],
            Kind.LATE: [self.delay + LATE_SECONDS],
            Kind.DOUBLED: [self.delay, self.delay + LATE_SECONDS],
        }
        for seconds in moments.get(kind, [self.delay]) if kind else [self.delay]:
            self.time.call_later(seconds, lambda: receive(message))
        ### END SOLUTION
