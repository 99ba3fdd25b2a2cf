"""A budget whose decisions are counted, for metrics and pictures (given)."""

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
        self.decisions = dict.fromkeys(("grown", "kept", "slow", "scarce"), 0)

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
