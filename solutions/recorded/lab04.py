"""What the scheduler of lab 04 does with random histories, the shortest first."""

from typing import Any

from grader.checks.scheduler_histories import POLICIES, play, random_history

EACH = 10


def record() -> list[Any]:
    """Policy, seed and run of each history."""
    runs = [
        [name, seed, play(random_history(name, seed))] for name in POLICIES for seed in range(EACH)
    ]
    return sorted(runs, key=lambda run: len(run[2]["steps"]))
