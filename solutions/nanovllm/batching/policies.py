"""Who goes first, and who must give way: one small class for each policy."""

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from nanovllm.batching.errors import ConfigError, UnknownPolicyError
from nanovllm.batching.request import Priority, Request

Rank = tuple[float, float, int]  # the key, then arrival, then number: never equal


class Policy(ABC):
    """A sort key (smallest first), and a rule for whom to preempt."""

    name: ClassVar[str]
    ages: ClassVar[bool] = False  # whether keys change while requests wait

    @abstractmethod
    def key(self, request: Request, now: float) -> float:
        """Smaller goes first; equal keys go by arrival."""

    def rank(self, request: Request, now: float) -> Rank:
        """The key with its ties broken: by arrival, then by number. No two requests are equal.

        >>> from nanovllm.batching.simulated import SimulatedSequence
        >>> request = Request(3, SimulatedSequence(3, 5, 9), arrival=1.5, limit=13)
        >>> ShortestJobFirst().rank(request, now=2.0)
        (13, 1.5, 3)
        """
        ### BEGIN SOLUTION
        return (self.key(request, now), request.arrival, request.number)
        ### END SOLUTION

    def victim(self, running: Iterable[Request], now: float) -> Request:
        """Whom to preempt when there is no room: the one that would have been admitted last.

        So whoever goes first is never preempted, and somebody always gets to the end.
        """
        ### BEGIN SOLUTION
        return max(running, key=lambda request: self.rank(request, now))
        ### END SOLUTION

    def turn_is_over(self, request: Request) -> bool:
        """Whether a running request should make room for one that waits."""
        return False


class FirstComeFirstServed(Policy):
    """In order of arrival; a preempted request is first again."""

    name = "fcfs"

    def key(self, request: Request, now: float) -> float:
        return request.arrival


class ShortestJobFirst(Policy):
    """The least work left first: the best mean latency, and nothing for the long ones."""

    name = "sjf"

    def key(self, request: Request, now: float) -> float:
        """The most tokens that may still have to be computed.

        An upper bound: who stops early was shorter than it said.
        """
        ### BEGIN SOLUTION
        return request.work_left
        ### END SOLUTION


@dataclass(frozen=True)
class RoundRobin(Policy):
    """Everybody gets a turn of `quantum` generated tokens, then goes to the back of the queue."""

    quantum: int = 16
    name: ClassVar[str] = "round-robin"

    def __post_init__(self) -> None:
        if self.quantum < 1:
            raise ConfigError(f"The quantum must be at least 1 token, got {self.quantum}.")

    def key(self, request: Request, now: float) -> float:
        """When it came into its present state: for a request in the queue, when it queued up.

        >>> from nanovllm.batching.simulated import SimulatedSequence
        >>> request = Request(3, SimulatedSequence(3, 5, 9), arrival=1.5, limit=13)
        >>> RoundRobin().key(request, now=9.0)
        1.5
        """
        ### BEGIN SOLUTION
        return request.entered
        ### END SOLUTION

    def turn_is_over(self, request: Request) -> bool:
        """Whether it has generated `quantum` tokens since it was last admitted.

        Generated, not computed: a turn that reading the prompt again could use up would never
        bring a long request forward.
        """
        ### BEGIN SOLUTION
        return request.turn_tokens >= self.quantum
        ### END SOLUTION


@dataclass(frozen=True)
class PriorityWithAging(Policy):
    """The highest score first: class, plus waiting, minus size."""

    points_per_minute: float = 5.0
    points_per_token: float = 0.1
    name: ClassVar[str] = "priority"
    ages: ClassVar[bool] = True

    def score(self, request: Request, now: float) -> float:
        """The base of its class, + 5 a minute waited, - 0.1 a token of work left.

        Fractions of a minute count. Base and waiting together are at most the base of the highest
        class: who has waited long enough stands beside the most urgent, not above them.

        >>> from nanovllm.batching.simulated import SimulatedSequence
        >>> request = Request(3, SimulatedSequence(3, 90, 11), 0.0, 100, Priority.LOW)
        >>> PriorityWithAging().score(request, now=120.0)
        10.0
        """
        ### BEGIN SOLUTION
        aged = request.priority.value + self.points_per_minute * request.waited(now) / 60
        return min(aged, Priority.HIGH.value) - self.points_per_token * request.work_left
        ### END SOLUTION

    def key(self, request: Request, now: float) -> float:
        """The score, turned round: the smallest key goes first."""
        ### BEGIN SOLUTION
        return -self.score(request, now)
        ### END SOLUTION


@dataclass(frozen=True)
class SizeQueues(Policy):
    """Three queues by size, the shorter first; who waits moves up a queue at a time."""

    small: int = 128  # tokens of work, up to and including
    medium: int = 512
    patience: float = 30.0  # seconds waited that are worth one queue
    name: ClassVar[str] = "size-queues"
    ages: ClassVar[bool] = True

    def key(self, request: Request, now: float) -> float:
        """Its queue: 0 up to `small` tokens of work (its limit), 1 up to `medium`, 2 above.

        Less one for each full `patience` waited in the queue, all stays together, but never
        below 0: nobody starves.

        >>> from nanovllm.batching.simulated import SimulatedSequence
        >>> request = Request(3, SimulatedSequence(3, 600, 1), arrival=0.0, limit=600)
        >>> [SizeQueues().key(request, now) for now in (0.0, 29.0, 30.0, 900.0)]
        [2, 2, 1, 0]
        """
        ### BEGIN SOLUTION
        queue = (request.limit > self.small) + (request.limit > self.medium)
        return max(0, queue - int(request.waited(now) // self.patience))
        ### END SOLUTION


POLICIES: tuple[type[Policy], ...] = (
    FirstComeFirstServed,
    ShortestJobFirst,
    RoundRobin,
    PriorityWithAging,
    SizeQueues,
)


def make_policy(name: str) -> Policy:
    """The policy of a name, with its default settings. Raises UnknownPolicyError.

    >>> make_policy("sjf").name
    'sjf'
    """
    for policy in POLICIES:
        if policy.name == name:
            return policy()
    known = ", ".join(policy.name for policy in POLICIES)
    raise UnknownPolicyError(f"There is no policy {name!r}; choose one of {known}.")


class WaitingQueue:
    """Who waits, kept in the policy's order; nothing in it remembers who has left."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._entries: list[tuple[Rank, Request]] = []  # sorted
        self._rank_of: dict[Request, Rank] = {}  # where in _entries to find each
        self._ranked_at: float | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        return (request for _, request in self._entries)

    def __contains__(self, request: Request) -> bool:
        return request in self._rank_of

    def push(self, request: Request, now: float) -> None:
        """Add a request at its place. Cost: a binary search and a move of pointers."""
        rank = self._rank_of[request] = self.policy.rank(request, now)
        insort(self._entries, (rank, request))

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it stands: admitted, or aborted while it waited."""
        ### BEGIN SOLUTION
        at = bisect_left(self._entries, (self._rank_of.pop(request),))
        del self._entries[at]
        ### END SOLUTION

    def first(self, now: float) -> Request:
        """Who goes first at this moment; with a policy that ages, all are ranked again."""
        if self.policy.ages and self._ranked_at != now:
            self._ranked_at = now
            self._rank_of = {request: self.policy.rank(request, now) for request in self}
            self._entries = sorted((rank, request) for request, rank in self._rank_of.items())
        return self._entries[0][1]
