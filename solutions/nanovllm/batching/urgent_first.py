"""`UrgentFirst`: priorities with vLLM's meaning, deadlines beside them, and nobody starves."""

### BEGIN SOLUTION
from collections.abc import Collection
from dataclasses import dataclass

from nanovllm.batching.errors import ConfigError
from nanovllm.batching.policies import URGENT_FIRST, Policy, Rank
from nanovllm.batching.request import Request


@dataclass(frozen=True)
class UrgentFirst(Policy):
    """By level, deadline, arrival and number; a lower level displaces the last of those that run.

    >>> from nanovllm.batching.simulated import SimulatedSequence
    >>> request = Request(3, SimulatedSequence(3, 5, 9), arrival=1.5, limit=13, priority=2)
    >>> [UrgentFirst(patience=60.0).key(request, now) for now in (1.5, 61.0, 61.5, 181.5)]
    [2, 2, 1, -1]
    """

    patience: float = 60.0  # seconds waited that are worth one priority
    name = URGENT_FIRST
    ages = reads_priority = reads_deadline = True

    def __post_init__(self) -> None:
        if not self.patience > 0:
            raise ConfigError(f"patience must be above 0 seconds, got {self.patience}.")

    def key(self, request: Request, now: float) -> int:
        """The level: the priority, as it is by now."""
        return request.priority - int(request.waited(now) // self.patience)

    def rank(self, request: Request, now: float) -> Rank:
        """Also by deadline, before arrival and number."""
        return (self.key(request, now), request.deadline, request.arrival, request.number)

    def displaced(self, first: Request, running: Collection[Request], now: float) -> Request | None:
        """Whoever would have been admitted last, if its level is higher."""
        if not running:
            return None
        last = self.victim(running, now)
        return last if self.key(first, now) < self.key(last, now) else None


### END SOLUTION
