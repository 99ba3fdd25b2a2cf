"""How many replicas there should be, from what is open: late enough to be sure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from nanovllm.cluster.errors import ClusterError
from nanovllm.cluster.fleet import Replica, State


@dataclass
class Autoscaler:
    """Keeps about `target` open requests a replica.

    least, most: replicas, whatever is open. up_delay, down_delay: seconds for which more, or fewer,
    must have been wanted without a break. slack: share of the target by which the load may be
    off before anything is wanted (hysteresis).
    """

    target: float
    least: int = 1
    most: int = 8
    up_delay: float = 10.0
    down_delay: float = 60.0
    slack: float = 0.1
    _since: float | None = field(default=None, init=False, repr=False)  # a change has been wanted
    _direction: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        if not (self.target > 0 and 0 <= self.least <= self.most and 0 <= self.slack < 1):
            raise ClusterError(
                f"An autoscaler needs target > 0, 0 <= least <= most and 0 <= slack < 1, got "
                f"{self.target}, {self.least}, {self.most} and {self.slack}."
            )

    def wanted(self, open_requests: int, living: int) -> int:
        """Replicas that this load wants, without delays, where `living` are there or on their way.

        As many as bring it to the target; `living` while it is within the slack of it. Never
        outside least .. most.

        >>> scaler = Autoscaler(target=10, most=5)
        >>> [scaler.wanted(n, living=2) for n in (0, 9, 18, 22, 23, 999)]
        [1, 1, 2, 2, 3, 5]
        """
        ### BEGIN SOLUTION
        if abs(open_requests - self.target * living) <= self.slack * self.target * living:
            count = living
        else:
            count = math.ceil(open_requests / self.target)
        return min(max(count, self.least), self.most)
        ### END SOLUTION

    def decide(self, now: float, open_requests: int, living: int) -> int:
        """Replicas to have from now on; `living` until a change has been wanted long enough.

        A change in the other direction, or no change, begins the wait anew. After a change it
        begins anew as well. Bounds are kept at once: below `least` the answer is `least`, above
        `most` it is `most`, and the wait begins anew.

        >>> scaler = Autoscaler(target=10, up_delay=5)
        >>> [scaler.decide(now, 30, living=1) for now in (0.0, 4.0, 5.0)]
        [1, 1, 3]
        """
        ### BEGIN SOLUTION
        if not self.least <= living <= self.most:
            self._since, self._direction = None, 0
            return min(max(living, self.least), self.most)
        wanted = self.wanted(open_requests, living)
        direction = (wanted > living) - (wanted < living)
        if direction != self._direction or self._since is None:
            self._since, self._direction = now, direction
        delay = self.up_delay if direction > 0 else self.down_delay
        if not direction or now - self._since < delay:
            return living
        self._since = None
        return wanted
        ### END SOLUTION


def to_drain(replicas: Iterable[Replica], count: int) -> list[str]:
    """Which `count` of the living to give up: those that cost least to lose.

    Starting ones first, for nobody waits for an answer there; then those with the fewest open.

    >>> ready = [Replica("a", "v", State.READY, 3), Replica("b", "v", State.READY, 1)]
    >>> to_drain([*ready, Replica("c", "v")], 2)
    ['c', 'b']
    """
    ### BEGIN SOLUTION
    living = [r for r in replicas if r.state in (State.STARTING, State.READY)]
    living.sort(key=lambda replica: (replica.state is State.READY, replica.open))
    return [replica.name for replica in living[:count]]
    ### END SOLUTION
