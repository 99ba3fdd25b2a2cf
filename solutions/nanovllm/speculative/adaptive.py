"""Who guesses, and how many, by history and costs."""

### BEGIN SOLUTION
from collections.abc import Sequence
from dataclasses import dataclass

from nanovllm.batching.request import Request
from nanovllm.speculative.costs import Costs
from nanovllm.speculative.proposer import Guesses


@dataclass
class Places:
    """Of the places that were reached, those that stood; the older ones weigh less."""

    stood: float
    reached: float
    memory: float

    def add(self, stood: bool) -> None:
        """One more place was reached."""
        self.stood = self.memory * self.stood + stood
        self.reached = self.memory * self.reached + 1.0


@dataclass
class History:
    """What is known of one request: its places, and how long it has yet to wait for a trial."""

    places: Places
    wait: int
    pause: int


class AdaptivePolicy:
    """The guesses that bring the most tokens a second, if place j of a request stands with rate^j.

    The rate of a request is that of its own places, with those of all requests counting as `weight`
    more of them. Who guesses nothing tries one guess after `pause` steps, then after twice as many,
    up to `longest_pause`: unless it would not pay if all guesses were right.
    """

    def __init__(
        self,
        most: int,
        costs: Costs | None = None,
        *,
        weight: float = 3.0,
        pause: int = 32,
        longest_pause: int = 64,
    ) -> None:
        self.most, self.costs = most, costs or Costs()
        self.weight, self.pause, self.longest_pause = weight, pause, longest_pause
        self._all = Places(stood=6.0, reached=10.0, memory=0.98)
        self._of: dict[Request, History] = {}

    def lengths(self, requests: Sequence[Request], most: Sequence[int], tokens: int) -> list[int]:
        """As GuessPolicy."""
        if not requests:
            return []
        limits = [max(min(limit, self.most), 0) for limit in most]
        histories = [self._history(request) for request in requests]
        wanted = self._best([self._rate(history) for history in histories], limits)
        due = []
        for i, history in enumerate(histories):
            if wanted[i]:
                history.wait = history.pause = self.pause
            else:
                history.wait -= 1
                if history.wait <= 0:
                    due.append(i)
        could = self._best([1.0] * len(requests), limits) if due else []
        for i in due:
            if could[i]:
                pause = min(2 * histories[i].pause, self.longest_pause)
                histories[i].wait = histories[i].pause = pause
                wanted[i] = 1
        return wanted

    def _best(self, rates: Sequence[float], limits: Sequence[int]) -> list[int]:
        """Guesses of each request with the most tokens a second.

        Tokens of prompts in the same step are left out: they cost the same in any case.
        """
        costs, count = self.costs, len(rates)
        alone = costs.base + costs.token * count
        wanted, speed = [0] * count, count / alone
        while True:  # with a higher speed fewer guesses pay, and those bring a higher speed
            better, tokens = self._worth(rates, limits, speed)
            seconds = alone + costs.token * sum(better) + costs.drafting(better)
            if tokens <= speed * seconds * (1.0 + 1e-9):
                return wanted
            wanted, speed = better, tokens / seconds

    def _worth(
        self, rates: Sequence[float], limits: Sequence[int], speed: float
    ) -> tuple[list[int], float]:
        """The guesses that bring more tokens than their time is worth, and the step's tokens."""
        price = speed * (self.costs.token + self.costs.draft)
        wanted, tokens, chances = [0] * len(rates), float(len(rates)), list(rates)
        for depth in range(1, max(limits) + 1):
            good = [
                i
                for i, (chance, limit) in enumerate(zip(chances, limits, strict=True))
                if depth <= limit and chance > price
            ]
            gain = sum(chances[i] for i in good)
            if gain - price * len(good) <= speed * self.costs.forward:  # one forward for them all
                break
            for i in good:
                wanted[i] = depth
            tokens += gain
            chances = [chance * rate for chance, rate in zip(chances, rates, strict=True)]
        return wanted, tokens

    def _rate(self, history: History) -> float:
        places = history.places
        rate = self._all.stood / self._all.reached
        return (places.stood + self.weight * rate) / (places.reached + self.weight)

    def _history(self, request: Request) -> History:
        history = self._of.get(request)
        if history is None:
            history = History(Places(0.0, 0.0, memory=0.9), self.pause, self.pause)
            self._of[request] = history
        return history

    def judged(self, request: Request, guesses: Guesses, accepted: int) -> None:
        """As GuessPolicy."""
        history = self._history(request)
        for place in range(min(accepted + 1, len(guesses.token_ids))):
            history.places.add(place < accepted)
            self._all.add(place < accepted)
        if accepted:  # after a trial that stood, the next one comes soon
            history.wait, history.pause = min(history.wait, 3), self.pause

    def rest(self, steps: int) -> int:
        """As GuessPolicy."""
        waiting = [history for history in self._of.values() if history.wait > 0]  # no trial in vain
        steps = min([steps, *(history.wait - 1 for history in waiting)])
        for history in waiting:
            history.wait -= steps
        return steps

    def forget(self, request: Request) -> None:
        """As GuessPolicy."""
        self._of.pop(request, None)


### END SOLUTION
