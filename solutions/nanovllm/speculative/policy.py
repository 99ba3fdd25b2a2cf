"""Who guesses, and how many: always the same number, or what history and costs speak for."""

### BEGIN SOLUTION
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from nanovllm.batching.request import Request
from nanovllm.speculative.proposer import Guesses


class GuessPolicy(Protocol):
    """Decides before each step; learns from what came of it."""

    def lengths(
        self, requests: Sequence[Request], most: Sequence[int], tokens: int
    ) -> list[int]: ...
    def drafted(self, guesses: int, seconds: float) -> None: ...
    def judged(self, request: Request, guesses: Guesses, accepted: int) -> None: ...
    def observe(self, seconds: float) -> None: ...
    def forget(self, request: Request) -> None: ...


class FixedPolicy:
    """Everybody guesses, always as many."""

    def __init__(self, guesses: int) -> None:
        self.guesses = guesses

    def lengths(self, requests: Sequence[Request], most: Sequence[int], tokens: int) -> list[int]:
        """Guesses wanted of each request, at most those of `most`. tokens: of the plan so far."""
        return [min(self.guesses, limit) for limit in most]

    def drafted(self, guesses: int, seconds: float) -> None:
        """So many guesses of the draft model took so long."""

    def judged(self, request: Request, guesses: Guesses, accepted: int) -> None:
        """Of the guesses of a request, the first `accepted` stood."""

    def observe(self, seconds: float) -> None:
        """The step took so long, guessing included."""

    def forget(self, request: Request) -> None:
        """The request has ended."""


@dataclass
class Costs:
    """Seconds of a step: `base`, `token` for each token that it computes, `draft` for each guess.

    Learnt from steps as they run: a straight line through them, the newer ones weighing more.
    """

    base: float = 1.0
    token: float = 0.02
    draft: float = 0.0
    memory: float = 0.98
    _sums: tuple[float, ...] = (0.0,) * 5

    def step(self, tokens: int, seconds: float) -> None:
        """Learn that a step of so many tokens took so long."""
        new = (1.0, tokens, seconds, tokens * tokens, tokens * seconds)
        n, t, s, tt, ts = self._sums = tuple(
            self.memory * old + more for old, more in zip(self._sums, new, strict=True)
        )
        spread = n * tt - t * t
        if spread > 0.5 * n * n:  # steps of several sizes were seen
            self.token = max((n * ts - t * s) / spread, 0.0)
        else:
            self.token = min(self.token, s / n)
        self.base = max(s / n - self.token * t / n, 0.0)

    def guessing(self, guesses: int, seconds: float) -> None:
        """Learn that so many guesses of the draft model took so long."""
        each = seconds / guesses
        self.draft = each if not self.draft else 0.9 * self.draft + 0.1 * each


class AdaptivePolicy:
    """Takes the guesses that bring more tokens a second than the step does without them.

    The rate at which a request's guesses stand is a moving average over the places that were
    reached, and begins as that of all requests. Place j of a request stands with rate^j; places
    are taken by that, the likeliest first, while they pay. Who guesses nothing tries again after
    `pause` steps, then twice as many, up to `longest_pause`.
    """

    def __init__(
        self,
        most: int,
        costs: Costs | None = None,
        *,
        learning: bool = True,
        pause: int = 16,
        longest_pause: int = 256,
    ) -> None:
        self.most, self.costs, self.learning = most, costs or Costs(), learning
        self.pause, self.longest_pause = pause, longest_pause
        self.rate = 0.6  # of all requests
        self._rate: dict[Request, float] = {}
        self._waits: dict[Request, tuple[int, int]] = {}  # steps to go, and how long it was
        self._tokens, self._drafting = 0, 0.0

    def lengths(self, requests: Sequence[Request], most: Sequence[int], tokens: int) -> list[int]:
        """As FixedPolicy."""
        wanted = [0] * len(requests)
        places = sorted(
            (-(self._rate.get(request, self.rate) ** j), i, j)
            for i, request in enumerate(requests)
            for j in range(1, min(self.most, most[i]) + 1)
        )
        yield_, cost = float(len(requests)), self.costs.base + self.costs.token * tokens
        more = self.costs.token + self.costs.draft
        for gain, i, j in places:
            if -gain * cost <= yield_ * more:
                break
            yield_, cost, wanted[i] = yield_ - gain, cost + more, j
        for i, request in enumerate(requests):
            if wanted[i]:
                self._waits.pop(request, None)
            elif most[i]:
                wanted[i] = min(self._trial(request), most[i], self.most)
        self._tokens = tokens
        return wanted

    def _trial(self, request: Request) -> int:
        """Guesses of one that does without: a few when its pause is over."""
        left, pause = self._waits.get(request, (self.pause, self.pause))
        if left > 1:
            self._waits[request] = left - 1, pause
            return 0
        longer = min(2 * pause, self.longest_pause)
        self._waits[request] = longer, longer
        return 2

    def drafted(self, guesses: int, seconds: float) -> None:
        """As FixedPolicy."""
        self._drafting += seconds
        if guesses and self.learning:
            self.costs.guessing(guesses, seconds)

    def judged(self, request: Request, guesses: Guesses, accepted: int) -> None:
        """As FixedPolicy."""
        count = len(guesses.token_ids)
        self._tokens += count
        rate = self._rate.get(request, self.rate)
        for place in range(min(accepted + 1, count)):
            stood = float(place < accepted)
            rate += 0.2 * (stood - rate)
            self.rate += 0.02 * (stood - self.rate)
        self._rate[request] = rate

    def observe(self, seconds: float) -> None:
        """As FixedPolicy."""
        if self.learning:
            self.costs.step(self._tokens, max(seconds - self._drafting, 0.0))
        self._drafting = 0.0

    def forget(self, request: Request) -> None:
        """As FixedPolicy."""
        self._rate.pop(request, None)
        self._waits.pop(request, None)


### END SOLUTION
