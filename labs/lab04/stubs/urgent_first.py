"""`UrgentFirst`: priorities with vLLM's meaning, deadlines beside them, no starving (given)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from nanovllm.batching.policies import Policy
from nanovllm.batching.request import Request

if TYPE_CHECKING:
    from nanovllm.batching.interface import SchedulerInterface


@dataclass(eq=False)
class UrgentFirst(Policy):
    """The lower priority number first; of equal ones the earlier deadline, then the arrival.

    The level of a request is its number, less one for each full `patience` of all its time in the
    queue: so everybody comes forward in the end. vLLM's policy of this name has no such ageing.
    Who waits displaces who runs, if its level is lower and it cannot come in otherwise; the one
    that would have been admitted last gives way, one a step.

    >>> from nanovllm.batching.simulated import SimulatedSequence
    >>> request = Request(3, SimulatedSequence(3, 5, 9), arrival=1.5, limit=13, priority=2)
    >>> [UrgentFirst(patience=60.0).level(request, now) for now in (1.5, 61.0, 61.5, 181.5)]
    [2, 2, 1, -1]
    """

    patience: float = 60.0  # seconds waited that are worth one priority
    displaced: Request | None = None  # who is to give way in the step that is planned
    name: ClassVar[str] = "priority"
    ages: ClassVar[bool] = True
    reads_priority: ClassVar[bool] = True
    reads_deadline: ClassVar[bool] = True

    def level(self, request: Request, now: float) -> int:
        """The priority, as it is by now."""
        return request.urgency - int(request.waited(now) // self.patience)

    def key(self, request: Request, now: float) -> float:
        return self.level(request, now)

    def rank(self, request: Request, now: float) -> tuple[float, ...]:
        """Also by deadline, before arrival and number."""
        return (self.level(request, now), request.deadline, request.arrival, request.number)

    def turn_is_over(self, request: Request) -> bool:
        return request is self.displaced

    def choose_displaced(self, scheduler: SchedulerInterface) -> None:
        """Before a step is planned: who gives way if the first in the queue cannot come in."""
        self.displaced = None
        if scheduler.waiting and scheduler.running:
            now = scheduler.clock()
            last = self.victim(scheduler.running, now)
            if self.level(scheduler.queue()[0], now) < self.level(last, now):
                self.displaced = last
