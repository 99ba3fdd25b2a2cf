"""Who guesses, and how many, by history and costs."""

### BEGIN SOLUTION
from collections.abc import Sequence

from nanovllm.batching.request import Request
from nanovllm.speculative.costs import Costs
from nanovllm.speculative.proposer import Guesses


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
        pause: int = 16,
        longest_pause: int = 256,
    ) -> None:
        self.most, self.costs = most, costs or Costs()
        self.pause, self.longest_pause = pause, longest_pause
        self.rate = 0.6  # of all requests
        self._rate: dict[Request, float] = {}
        self._waits: dict[Request, tuple[int, int]] = {}  # steps to go, and how long it was

    def lengths(self, requests: Sequence[Request], most: Sequence[int], tokens: int) -> list[int]:
        """As GuessPolicy."""
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

    def judged(self, request: Request, guesses: Guesses, accepted: int) -> None:
        """As GuessPolicy."""
        count = len(guesses.token_ids)
        rate = self._rate.get(request, self.rate)
        for place in range(min(accepted + 1, count)):
            stood = float(place < accepted)
            rate += 0.2 * (stood - rate)
            self.rate += 0.02 * (stood - self.rate)
        self._rate[request] = rate

    def forget(self, request: Request) -> None:
        """As GuessPolicy."""
        self._rate.pop(request, None)
        self._waits.pop(request, None)


### END SOLUTION
