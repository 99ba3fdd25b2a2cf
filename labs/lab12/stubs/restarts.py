"""How often an engine may be started again: a crash loop ends."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass
class RestartLimit:
    """At most `most` restarts in any `window` seconds; older ones are forgotten.

    >>> limit = RestartLimit(most=2, window=60.0)
    >>> [limit.allow(now) for now in (0.0, 1.0, 2.0, 60.0)]
    [True, True, False, True]
    """

    most: int = 5
    window: float = 60.0
    times: deque[float] = field(default_factory=deque)

    def allow(self, now: float) -> bool:
        """Whether one more restart is allowed now; if so, it counts, and only then.

        A restart that is `window` seconds old, or older, is forgotten.
        """
        raise NotImplementedError("lab12 task 5: RestartLimit.allow")
