"""A budget whose decisions are counted, for metrics and pictures (given)."""

from typing import Any

from nanovllm.batching.budget import AdaptiveBudget


class CountedBudget:
    """An AdaptiveBudget, and how often it decided what.

    grown: a fast step. kept: one between fast and slow, or at an end of the range. slow: less, for
    the step was slow. scarce: less, for the store is nearly full.

    >>> budget = CountedBudget(AdaptiveBudget(limit=100))
    >>> for seconds in (0.060, 0.040, 0.020):
    ...     budget.observe(seconds, free_share=0.5)
    >>> budget.limit, budget.decisions
    (88, {'grown': 1, 'kept': 1, 'slow': 1, 'scarce': 0})
    """

    def __init__(self, budget: AdaptiveBudget) -> None:
        self.budget = budget
        self.decisions: dict[str, int] = dict.fromkeys(("grown", "kept", "slow", "scarce"), 0)

    @property
    def highest(self) -> int:
        """What the machine takes."""
        return self.budget.highest

    @property
    def limit(self) -> int:
        """What the next step may compute."""
        return self.budget.limit

    def observe(self, seconds: float, free_share: float) -> None:
        """Let the budget decide, and count it."""
        before = self.limit
        self.budget.observe(seconds, free_share)
        if self.limit < before:
            decision = "scarce" if free_share < self.budget.scarce else "slow"
        else:
            decision = "grown" if self.limit > before else "kept"
        self.decisions[decision] += 1


def counted(engine: Any) -> CountedBudget | None:
    """The budget of an engine if it is counted, also behind another (lab 12 puts a brake there)."""
    budget = getattr(getattr(engine, "scheduler", None), "budget", None)
    while budget is not None and not isinstance(budget, CountedBudget):
        budget = getattr(budget, "budget", None)
    return budget


class LiveBudget:
    """The counted budget of whatever engine is there: one that was made anew (lab 12) has another.

    Decisions are those of all of them. limit: what the next step may compute, a brake included.
    """

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self._last: CountedBudget | None = None
        self._before: dict[str, int] = {}

    @property
    def highest(self) -> int:
        """What the machine takes."""
        return self.engine.scheduler.budget.highest

    @property
    def limit(self) -> int:
        """What the next step may compute."""
        return self.engine.scheduler.budget.limit

    @property
    def decisions(self) -> dict[str, int]:
        """How often which was made, since the start."""
        now = counted(self.engine)
        if now is not self._last and self._last is not None:
            for name, count in self._last.decisions.items():
                self._before[name] = self._before.get(name, 0) + count
        self._last = now
        newest = now.decisions if now is not None else {}
        return {n: self._before.get(n, 0) + newest.get(n, 0) for n in self._before | newest}
