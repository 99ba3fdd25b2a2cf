"""Who goes first, and who must give way: one small class for each policy."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import ClassVar

from nanovllm.batching.errors import ConfigError, UnknownPolicyError
from nanovllm.batching.request import Priority, Request

Rank = tuple[float, ...]  # the key, then arrival, then number: never equal


class Policy(ABC):
    """A sort key (smallest first), and a rule for whom to preempt."""

    name: ClassVar[str]
    ages: ClassVar[bool] = False  # whether keys change while requests wait
    reads_priority: ClassVar[bool] = False  # else a caller who says one is refused
    reads_deadline: ClassVar[bool] = False

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
        raise NotImplementedError("lab04 task 2: Policy.rank")

    def victim(self, running: Iterable[Request], now: float) -> Request:
        """Whom to preempt when there is no room: the one that would have been admitted last.

        So whoever goes first is never preempted, and somebody always gets to the end.
        """
        raise NotImplementedError("lab04 task 2: Policy.victim")

    def turn_is_over(self, request: Request) -> bool:
        """Whether a running request should make room for one that waits."""
        return False

    def displaced(self, first: Request, running: Collection[Request], now: float) -> Request | None:
        """Who of those that run gives way to the first of the queue, which cannot come in.

        running: the batch, in order of admission, perhaps empty. None: nobody. Here it is the first
        whose turn is over. A scheduler asks once a step at most, and may also ask, and forget the
        answer, where `first` can come in.
        """
        return next((request for request in running if self.turn_is_over(request)), None)


class FirstComeFirstServed(Policy):
    """In order of arrival; a preempted request is first again."""

    name = "fcfs"

    def key(self, request: Request, now: float) -> float:
        return request.arrival


class ShortestJobFirst(Policy):
    """The least work left first: the best mean latency, and nothing for the long ones.

    The work left is the most tokens that may still have to be computed. It is an upper bound: a
    request that stops early was shorter than it said.

    >>> from nanovllm.batching.simulated import SimulatedSequence
    >>> request = Request(3, SimulatedSequence(3, 30, 11), 0.0, 40, num_computed_tokens=25)
    >>> ShortestJobFirst().key(request, now=5.0)
    15
    """

    name = "sjf"

    def key(self, request: Request, now: float) -> float:
        raise NotImplementedError("lab04 task 2: ShortestJobFirst.key")


class EarliestDeadline(Policy):
    """The request whose answer is due first; those without a deadline come after all others.

    >>> from nanovllm.batching.simulated import SimulatedSequence
    >>> request = Request(3, SimulatedSequence(3, 5, 9), arrival=1.5, limit=13, deadline=4.0)
    >>> EarliestDeadline().rank(request, now=9.0)
    (4.0, 1.5, 3)
    """

    name = "deadline"
    reads_deadline = True

    def key(self, request: Request, now: float) -> float:
        raise NotImplementedError("lab04 task 2: EarliestDeadline.key")


@dataclass(frozen=True)
class RoundRobin(Policy):
    """Everybody gets a turn of `quantum` generated tokens, then goes to the back of the queue.

    The key is when the request came into its present state: in the queue, when it queued up; in the
    batch, when it became SCHEDULED or RUNNING. A turn is over when so many tokens were generated
    since the last admission. Generated, not computed: a turn that reading the prompt again could
    use up would bring nobody forward.

    >>> from nanovllm.batching.simulated import SimulatedSequence
    >>> request = Request(3, SimulatedSequence(3, 5, 9), arrival=1.5, limit=13)
    >>> RoundRobin().key(request, now=9.0), RoundRobin().turn_is_over(request)
    (1.5, False)
    """

    quantum: int = 16
    name: ClassVar[str] = "round-robin"

    def __post_init__(self) -> None:
        if self.quantum < 1:
            raise ConfigError(f"The quantum must be at least 1 token, got {self.quantum}.")

    def key(self, request: Request, now: float) -> float:
        raise NotImplementedError("lab04 task 2: RoundRobin.key")

    def turn_is_over(self, request: Request) -> bool:
        raise NotImplementedError("lab04 task 2: RoundRobin.turn_is_over")


@dataclass(frozen=True)
class PriorityWithAging(Policy):
    """The lower score first: the priority, less for time in the queue, more for the work left.

    The score is the priority, less one for each `patience` of all its time in the queue (parts of
    it count). This never goes below Priority.HIGH: whose priority is HIGH or lower does not age.
    Then comes one more for each `size` tokens of work left (parts count).

    >>> from nanovllm.batching.simulated import SimulatedSequence
    >>> request = Request(3, SimulatedSequence(3, 90, 11), 0.0, 100, Priority.LOW)
    >>> [PriorityWithAging().score(request, now) for now in (0.0, 120.0, 3600.0)]
    [1.2, 1.0, -0.8]
    """

    patience: float = 600.0  # seconds waited that are worth one priority
    size: float = 500.0  # tokens of work left that are worth one priority
    name: ClassVar[str] = "priority-with-ageing"
    reads_priority: ClassVar[bool] = True
    ages: ClassVar[bool] = True

    def score(self, request: Request, now: float) -> float:
        raise NotImplementedError("lab04 task 2: PriorityWithAging.score")

    def key(self, request: Request, now: float) -> float:
        return self.score(request, now)


@dataclass(frozen=True)
class SizeQueues(Policy):
    """Three queues by size, the shorter first; a request that waits moves up a queue at a time.

    The key is its queue: 0 if its limit is at most `small` tokens, 1 if at most `medium`, else 2.
    It is one less for each full `patience` of all its time in the queue, and never below 0:
    nobody starves.

    >>> from nanovllm.batching.simulated import SimulatedSequence
    >>> request = Request(3, SimulatedSequence(3, 600, 1), arrival=0.0, limit=600)
    >>> [SizeQueues().key(request, now) for now in (0.0, 29.0, 30.0, 900.0)]
    [2, 2, 1, 0]
    """

    small: int = 128  # tokens of work, up to and including
    medium: int = 512  # not below `small`
    patience: float = 30.0  # seconds waited that are worth one queue
    name: ClassVar[str] = "size-queues"
    ages: ClassVar[bool] = True

    def key(self, request: Request, now: float) -> float:
        raise NotImplementedError("lab04 task 2: SizeQueues.key")


POLICIES: tuple[type[Policy], ...] = (
    FirstComeFirstServed,
    ShortestJobFirst,
    EarliestDeadline,
    RoundRobin,
    PriorityWithAging,
    SizeQueues,
)
URGENT_FIRST = "priority"  # in a file of its own (task 8)


def make_policy(name: str) -> Policy:
    """The policy of a name, with its default settings. Raises UnknownPolicyError.

    >>> make_policy("sjf").name
    'sjf'
    """
    if name == URGENT_FIRST:
        from nanovllm.batching.urgent_first import UrgentFirst

        return UrgentFirst()
    for policy in POLICIES:
        if policy.name == name:
            return policy()
    known = ", ".join([*(policy.name for policy in POLICIES), URGENT_FIRST])
    raise UnknownPolicyError(f"There is no policy {name!r}; choose one of {known}.")
