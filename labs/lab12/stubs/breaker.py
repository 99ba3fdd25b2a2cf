"""A server that fails is left alone for a while, then tried by one call."""

from __future__ import annotations

from enum import Enum


class BreakerState(Enum):
    """Closed: calls go through, as a current does."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Breaker:
    """Opens after `failures` failures in a row, and closes when a single call has done well.

    - CLOSED: every call may go. A success sets the count of failures back to 0.
    - OPEN: no call may go, for `rest` seconds; then it is HALF_OPEN.
    - HALF_OPEN: one call may go, all others not. Its success closes the breaker, its failure opens
      it for `rest` seconds more. If nobody has said within `rest` seconds how it ended, another
      one may go.

    Answers of calls that left before it opened change nothing while it is OPEN, nor when it is
    HALF_OPEN before the one call has left.

    >>> breaker = Breaker(failures=2, rest=5.0)
    >>> breaker.record(0.0, 503); breaker.record(1.0, None)
    >>> breaker.state(1.0).value, breaker.allow(5.9), breaker.allow(6.0), breaker.allow(6.0)
    ('open', False, True, False)
    """

    def __init__(self, failures: int = 5, rest: float = 10.0) -> None:
        self.failures, self.rest = failures, rest
        raise NotImplementedError("lab12 task 6: Breaker.__init__")

    def state(self, now: float) -> BreakerState:
        """What it is now."""
        raise NotImplementedError("lab12 task 6: Breaker.state")

    def allow(self, now: float) -> bool:
        """Whether a call may go; who is told True makes it, and records how it ended."""
        raise NotImplementedError("lab12 task 6: Breaker.allow")

    def record(self, now: float, status: int | None) -> None:
        """How a call ended: its HTTP status, or None without an answer.

        No answer and 500 or more are the server's failures. All else is a success: a 400 is its
        sender's fault, and the server is well.
        """
        raise NotImplementedError("lab12 task 6: Breaker.record")
