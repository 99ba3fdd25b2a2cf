"""Levels 1 and 2: smaller steps for a while, who is ended early, and who is to blame."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from nanovllm.resilience.vitals import Alarm, Remedy

T = TypeVar("T")
SHARE, HOLD, LONGEST = 0.7, 5.0, 30.0


class Brake:
    """Level 1 against a full store: 30 % less in a step, and nobody new, until all is well.

    The first alarm of a time of need begins it: `factor` is 0.7, and `closed` is True. It ends
    `hold` seconds after the last alarm, with everything as it was before. A further alarm makes it
    longer, never the steps smaller again.

    It is bounded: a time of need is over `longest` seconds after its first alarm, whatever comes
    after; then `exhausted` is True until `hold` seconds have passed without an alarm, and alarms
    begin no new time of need meanwhile. Somebody higher up has to help.

    >>> brake = Brake()
    >>> brake.alarm(0.0); brake.alarm(3.0)
    >>> [brake.factor(now) for now in (3.0, 7.9, 8.0)]
    [0.7, 0.7, 1.0]
    """

    def __init__(self, share: float = SHARE, hold: float = HOLD, longest: float = LONGEST) -> None:
        self.share, self.hold, self.longest = share, hold, longest
        ### BEGIN SOLUTION
        self._first = self._last = float("-inf")
        ### END SOLUTION

    def alarm(self, now: float) -> None:
        """The store is nearly full."""
        ### BEGIN SOLUTION
        if now - self._last >= self.hold:
            self._first = now
        self._last = now
        ### END SOLUTION

    def closed(self, now: float) -> bool:
        """Whether nobody new is let in."""
        ### BEGIN SOLUTION
        return now - self._last < self.hold and now - self._first < self.longest
        ### END SOLUTION

    def factor(self, now: float) -> float:
        """By which a step's token budget is multiplied."""
        ### BEGIN SOLUTION
        return self.share if self.closed(now) else 1.0
        ### END SOLUTION

    def exhausted(self, now: float) -> bool:
        """Whether this level has done what it could, and it was not enough."""
        ### BEGIN SOLUTION
        return now - self._last < self.hold and now - self._first >= self.longest
        ### END SOLUTION


@dataclass
class BrakedBudget:
    """A scheduler's token budget (lab 04) behind a brake: at least 1 token, rounded down."""

    budget: Any
    brake: Brake
    clock: Callable[[], float]

    @property
    def highest(self) -> int:
        """That of the budget: what a machine takes does not change."""
        return self.budget.highest

    @property
    def limit(self) -> int:
        """The budget's present limit, times the brake's factor; 0.7 of 90 tokens are 63."""
        ### BEGIN SOLUTION
        return max(1, int(self.budget.limit * self.brake.factor(self.clock()) + 1e-9))
        ### END SOLUTION

    def observe(self, seconds: float, free_share: float) -> None:
        """The budget behind goes on learning."""
        self.budget.observe(seconds, free_share)


@dataclass(frozen=True)
class OpenRequest:
    """A request that has not ended; a lower `priority` comes first, as in vLLM."""

    request_id: int
    arrived: float
    priority: int = 0


def overdue(requests: Iterable[OpenRequest], now: float, limit: float) -> list[int]:
    """Ids of those open for more than `limit` seconds, the oldest first; of equal age, the lower id
    first.

    >>> overdue([OpenRequest(1, 5.0), OpenRequest(2, 0.0), OpenRequest(3, 10.0)], 40.0, 30.0)
    [2, 1]
    """
    ### BEGIN SOLUTION
    late = [(one.arrived, one.request_id) for one in requests if now - one.arrived > limit]
    return [number for _, number in sorted(late)]
    ### END SOLUTION


def expendable(requests: Iterable[OpenRequest]) -> int | None:
    """Whom to end when memory is short: the least urgent, the oldest of these, of equal age the
    lower id; None without requests.

    >>> expendable([OpenRequest(1, 0.0, priority=-1), OpenRequest(2, 7.0), OpenRequest(3, 5.0)])
    3
    """
    ### BEGIN SOLUTION
    chosen = min(
        requests, key=lambda one: (-one.priority, one.arrived, one.request_id), default=None
    )
    return None if chosen is None else chosen.request_id
    ### END SOLUTION


def fragmentation(held: Collection[int]) -> float:
    """Share of a pool's span that nobody holds: of blocks 0 to the highest held one; 0 if none is
    held.

    Compaction moves the held blocks to the front, so that the rest can be given back.

    >>> fragmentation({0, 1, 9})
    0.7
    """
    ### BEGIN SOLUTION
    return 1 - len(held) / (max(held) + 1) if held else 0.0
    ### END SOLUTION


def isolate(batch: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> list[T]:
    """Those of a batch that are to blame: a part fails if, and only if, one of them is in it.

    All of them, in the batch's order. `fails(part)` runs a step for a part, which is not empty:
    with one to blame among n it is asked at most 2 * ceil(log2(n)) + 1 times, with none once.

    >>> isolate(range(8), lambda part: 5 in part)
    [5]
    """
    ### BEGIN SOLUTION
    if not batch or not fails(batch):
        return []
    if len(batch) == 1:
        return list(batch)
    middle = len(batch) // 2
    return isolate(batch[:middle], fails) + isolate(batch[middle:], fails)
    ### END SOLUTION


def alarms_of_memory(brake: Brake, now: float, requests: Sequence[OpenRequest]) -> list[Alarm]:
    """What is to be done about a nearly full store (given): the brake, then level 2."""
    brake.alarm(now)
    if not brake.exhausted(now):
        return []
    return [Alarm(Remedy.CANCEL, expendable(requests))]
