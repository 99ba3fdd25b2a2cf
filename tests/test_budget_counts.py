"""What an adaptive budget has decided, also behind a brake and after a restart."""

from __future__ import annotations

from types import SimpleNamespace

from nanovllm.batching.budget import AdaptiveBudget
from nanovllm.batching.budget_counts import CountedBudget, LiveBudget, counted
from nanovllm.resilience.relief import Brake, BrakedBudget


def engine_with(limit: int, steps: int) -> SimpleNamespace:
    budget = CountedBudget(AdaptiveBudget(limit=limit))
    for _ in range(steps):
        budget.observe(0.060, free_share=0.5)
    braked = BrakedBudget(budget, Brake(), lambda: 0.0)
    return SimpleNamespace(scheduler=SimpleNamespace(budget=braked))


def test_decisions_add_up_over_engines_that_are_made_anew() -> None:
    place = engine_with(100, 3)
    live = LiveBudget(place)
    first = live.decisions
    assert first["slow"] == 3 and live.limit == place.scheduler.budget.limit
    place.scheduler = engine_with(200, 2).scheduler
    assert live.decisions == {**first, "slow": 5}
    assert live.decisions == {**first, "slow": 5}, "asked twice, counted once"
    assert live.highest == place.scheduler.budget.highest


def test_a_budget_that_nobody_counts_is_none() -> None:
    assert counted(SimpleNamespace(scheduler=SimpleNamespace(budget=7))) is None
    assert counted(SimpleNamespace()) is None
