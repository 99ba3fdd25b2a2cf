"""What an adaptive token budget decides, as metrics; only where there is one (given)."""

from collections.abc import Sequence

from prometheus_client import Counter

from nanovllm.batching.budget_counts import LiveBudget
from nanovllm.batching.events import EngineEvent
from nanovllm.serving.registry import LABELS, Registry


class BudgetCounts:
    """Brings a server's registry up to what the budget has decided, after each step."""

    def __init__(self, registry: Registry, budget: LiveBudget) -> None:
        self.budget = budget
        self.limit = registry.gauge("token_budget_limit", "Tokens that the next step may compute.")
        self.limit.set(budget.limit)
        decisions = Counter(
            "nanovllm:token_budget_decisions",
            "What the controller did with its limit after a step.",
            (*LABELS, "decision"),
            registry=registry.registry,
        )
        self.counters = {
            name: decisions.labels(*registry.labels, name) for name in budget.decisions
        }
        self.counted = dict.fromkeys(budget.decisions, 0)

    def observe(self, events: Sequence[EngineEvent], usage: float) -> None:
        """After a step: what is new since the last one."""
        for name, count in self.budget.decisions.items():
            self.counters[name].inc(count - self.counted[name])
            self.counted[name] = count
        self.limit.set(self.budget.limit)
