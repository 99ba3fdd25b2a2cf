"""A call to one of several servers: with a deadline, few retries, and respect for breakers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nanovllm.resilience.breaker import Breaker
from nanovllm.resilience.errors import BreakerOpenError, DeadlinePassedError, UnavailableError
from nanovllm.resilience.retry_budget import RetryBudget

HEADER = "x-request-timeout-ms"


@dataclass(frozen=True)
class Deadline:
    """A moment on this machine's clock; what travels is the time that is left."""

    moment: float

    @classmethod
    def after(cls, now: float, seconds: float) -> Deadline:
        """The one in so many seconds."""
        return cls(now + seconds)

    @classmethod
    def of_headers(cls, now: float, headers: Mapping[str, str]) -> Deadline | None:
        """What a caller has left, by HEADER; None without one, or with one that is no number of
        milliseconds (whole, not negative).

        >>> Deadline.of_headers(100.0, {"x-request-timeout-ms": "250"})
        Deadline(moment=100.25)
        """
        raise NotImplementedError("lab12 task 6: Deadline.of_headers")

    def left(self, now: float) -> float:
        """Seconds; 0 when it is over."""
        return max(0.0, self.moment - now)

    def headers(self, now: float) -> dict[str, str]:
        """For the next server: milliseconds, rounded down, since it must not think it has more.

        Raises DeadlinePassedError where less than a millisecond is left.
        """
        raise NotImplementedError("lab12 task 6: Deadline.headers")


@dataclass(frozen=True)
class Reply:
    """What a server said."""

    status: int
    body: bytes = b""


class Caller:
    """Sends a request to the first of several servers that answers it.

    send(server, headers) gives a Reply, or raises OSError where there is no answer. The budget and
    the breakers, one for each server by its name, are shared by all requests; `clock` moves on its
    own while `send` waits.
    """

    def __init__(
        self,
        send: Callable[[str, dict[str, str]], Reply],
        clock: Callable[[], float],
        budget: RetryBudget | None = None,
        breakers: Mapping[str, Breaker] | None = None,
    ) -> None:
        self.send, self.clock = send, clock
        self.budget, self.breakers = budget or RetryBudget(), dict(breakers or {})

    def call(self, servers: Sequence[str], deadline: Deadline) -> Reply:
        """The answer of one server; each is asked at most once, in this order.

        - A server whose breaker does not allow it is passed over.
        - Each server that is asked gets the deadline's headers of that moment.
        - An answer below 500 is given back, whoever is to blame for it. No answer, or one of 500
          or more, is a reason for a retry with the next server, if the budget pays for it.
        - Each answer, and each lack of one, is recorded with the server's breaker. A server
          without a breaker gets a `Breaker()` of its own.

        Raises:
            DeadlinePassedError: the time is over, before the first or a further server is asked.
            BreakerOpenError: no server's breaker allowed it.
            UnavailableError: every server that might be asked failed, or no retry was paid for.
        """
        raise NotImplementedError("lab12 task 6: Caller.call")
