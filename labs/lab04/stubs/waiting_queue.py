"""`WaitingQueue`: who waits, in the order of a policy (given; a scheduler need not use it)."""

from bisect import bisect_left, insort
from collections.abc import Iterator

from nanovllm.batching.policies import Policy, Rank
from nanovllm.batching.request import Request


class WaitingQueue:
    """Requests by rank: in, out and the first in the time of a binary search.

    >>> from nanovllm.batching.policies import ShortestJobFirst
    >>> from nanovllm.batching.simulated import SimulatedSequence
    >>> queue = WaitingQueue(ShortestJobFirst())
    >>> for number, prompt in enumerate((9, 4)):
    ...     sequence = SimulatedSequence(number, prompt, 1)
    ...     queue.push(Request(number, sequence, arrival=0.0, limit=prompt), now=0.0)
    >>> queue.first(now=1.0).number, len(queue)
    (1, 2)
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._entries: list[tuple[Rank, Request]] = []  # sorted
        self._rank_of: dict[Request, Rank] = {}  # where in _entries to find each
        self._ranked_at: float | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        return (request for _, request in self._entries)

    def __contains__(self, request: object) -> bool:
        return request in self._rank_of

    def push(self, request: Request, now: float) -> None:
        """Add a request at its place, by its rank at this moment."""
        rank = self._rank_of[request] = self.policy.rank(request, now)
        insort(self._entries, (rank, request))

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it stands; KeyError if it is not here."""
        at = bisect_left(self._entries, (self._rank_of.pop(request),))
        del self._entries[at]

    def first(self, now: float) -> Request:
        """Who goes first at this moment; with a policy that ages, all are ranked again."""
        if self.policy.ages and self._ranked_at != now:
            self._ranked_at = now
            self._rank_of = {request: self.policy.rank(request, now) for request in self}
            self._entries = sorted((rank, request) for request, rank in self._rank_of.items())
        return self._entries[0][1]
