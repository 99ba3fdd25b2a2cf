"""What steps and guesses cost, learnt while they run (given)."""

from dataclasses import dataclass


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
        if not guesses:
            return
        each = seconds / guesses
        self.draft = each if not self.draft else 0.9 * self.draft + 0.1 * each
