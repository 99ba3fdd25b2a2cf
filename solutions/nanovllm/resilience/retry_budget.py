"""How many calls may be tried again, counted over all requests together."""

from __future__ import annotations

from collections import deque


class RetryBudget:
    """Retries are paid from what first calls bring in; it is one budget for all requests.

    Each first call brings `share` of a retry, and each second `a_second` retries, so that a quiet
    service can try again, too; both live for `seconds` only, and so does what was spent. At the
    moment t the budget holds

        a_second * seconds + share * calls - retries

    with the first calls and the paid retries of the last `seconds` (a moment just `seconds` ago
    counts no longer). Source: Finagle's RetryBudget, whose defaults these are.

    >>> budget = RetryBudget(share=0.5, a_second=0.0)
    >>> budget.call(0.0); budget.call(0.0)
    >>> [budget.retry(now) for now in (1.0, 1.0, 9.0)]
    [True, False, False]
    """

    def __init__(self, share: float = 0.2, a_second: float = 10.0, seconds: float = 10.0) -> None:
        self.share, self.a_second, self.seconds = share, a_second, seconds
        ### BEGIN SOLUTION
        self._calls: deque[float] = deque()
        self._retries: deque[float] = deque()
        ### END SOLUTION

    def call(self, now: float) -> None:
        """A request is sent for the first time."""
        ### BEGIN SOLUTION
        while self._calls and self._calls[0] <= now - self.seconds:
            self._calls.popleft()
        self._calls.append(now)
        ### END SOLUTION

    def retry(self, now: float) -> bool:
        """Whether one more retry is paid for; if so, it is spent. A whole one must be there."""
        ### BEGIN SOLUTION
        for times in (self._calls, self._retries):
            while times and times[0] <= now - self.seconds:
                times.popleft()
        income = self.a_second * self.seconds + self.share * len(self._calls)
        if income - len(self._retries) < 1 - 1e-9:
            return False
        self._retries.append(now)
        return True
        ### END SOLUTION
