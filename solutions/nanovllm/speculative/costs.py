"""What steps and guesses cost, learnt while they run (given)."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class Costs:
    """Seconds of a step: `base`, `token` for each token that it computes; of the draft model
    `forward` for each forward, and `draft` for each guess.

    The draft model guesses for all requests at once, so it has as many forwards as the longest
    guesses of the step are long. Learnt from steps as they run, the newer ones weighing more.
    """

    base: float = 1.0
    token: float = 0.02
    draft: float = 0.0
    forward: float = 0.0
    memory: float = 0.98
    _heard: bool = True  # of guesses, since the last `paced`
    _steps: tuple[float, ...] = (0.0,) * 5
    _drafts: tuple[float, ...] = (0.0,) * 5

    def drafting(self, counts: Sequence[int]) -> float:
        """Seconds of guessing so many tokens for each request.

        >>> Costs(draft=0.5, forward=2.0).drafting([3, 0, 1])
        8.0
        """
        return self.forward * max(counts, default=0) + self.draft * sum(counts)

    def step(self, tokens: int, seconds: float) -> None:
        """Learn that a step of so many tokens took so long: a straight line through all of them.

        What counts is the error in percent of a step, so long prompts do not bend the line where
        decodes are. Steps of one size alone leave `token` at its share of `base`.
        """
        if seconds <= 0.0:
            return  # a clock that stands still
        weight = 1.0 / max(tokens, 1)
        new = (weight, weight * tokens, seconds * weight, weight * tokens**2, seconds)
        n, t, s, tt, ts = self._steps = _faded(self._steps, self.memory, new)
        mean = t / n
        if tt / n - mean * mean > 0.02 * mean * mean:  # steps of several sizes were seen
            token = max((n * ts - t * s) / (n * tt - t * t), 0.0)
            self.base = max((s - token * t) / n, 0.0)
            self.token = min(token, s / t)
        else:
            scale = s / n / (self.base + self.token * mean)
            self.base, self.token = self.base * scale, self.token * scale

    def paced(self, tokens: int, seconds: float) -> None:
        """A step of so many tokens, without guesses, takes so long now: all that was learnt is
        brought to this pace. Seldom are both known at one time: who guesses makes no such steps,
        and who does not makes no others."""
        if seconds <= 0.0:
            return
        pace = min(max(seconds / (self.base + self.token * tokens), 0.5), 2.0)
        n, t, s, tt, ts = self._steps
        self._steps = n, t, pace * s, tt, pace * ts
        self.base, self.token = pace * self.base, pace * self.token
        if not self._heard:  # it may have been slow just then, and is learnt by guessing alone
            pace *= 0.5
        ff, fg, gg, fs, gs = self._drafts
        self._drafts = ff, fg, gg, pace * fs, pace * gs
        self.forward, self.draft = pace * self.forward, pace * self.draft
        self._heard = False

    def guessing(self, counts: Sequence[int], seconds: float) -> None:
        """Learn that the draft model took so long for so many guesses of each request."""
        if not any(counts) or seconds <= 0.0:
            return
        self._heard = True
        f, g = max(counts), sum(counts)
        ff, fg, gg, fs, gs = self._drafts = _faded(
            self._drafts, self.memory, (f * f, f * g, g * g, f * seconds, g * seconds)
        )
        spread = ff * gg - fg * fg
        draft = (ff * gs - fg * fs) / spread if spread > 0.02 * ff * gg else 0.0
        self.draft = min(max(draft, 0.0), gs / gg)
        self.forward = max((fs - self.draft * fg) / ff, 0.0)


def _faded(old: Sequence[float], memory: float, new: Sequence[float]) -> tuple[float, ...]:
    """Sums in which what was added before weighs less."""
    return tuple(memory * before + more for before, more in zip(old, new, strict=True))
