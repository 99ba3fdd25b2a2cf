"""`SchedulerBase`: the settings of a scheduler, and what reads its queue and batch only (given).

`Scheduler` is a SchedulerBase with `waiting` and `running`, whatever they are, and the rest of
SchedulerInterface.
"""

import time
from collections.abc import Callable
from typing import Any

from nanovllm.batching.budget import Budget, FixedBudget
from nanovllm.batching.errors import ConfigError, RequestTooLargeError, require
from nanovllm.batching.policies import FirstComeFirstServed, Policy
from nanovllm.batching.request import Request, Status
from nanovllm.batching.store import SchedulingStore


class SchedulerBase:
    """Store, policy, budget, limits and clock, under the names of the arguments."""

    waiting: Any  # collections of requests, in whatever structure
    running: Any

    def __init__(
        self,
        store: SchedulingStore,
        policy: Policy | None = None,
        budget: Budget | None = None,
        *,
        max_num_seqs: int = 16,
        max_chunk: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if max_num_seqs < 1:
            raise ConfigError(f"max_num_seqs must be at least 1, got {max_num_seqs}.")
        if max_chunk is not None and max_chunk < 1:
            raise ConfigError(f"max_chunk must be at least 1, got {max_chunk}.")
        self.store = store
        self.policy = policy or FirstComeFirstServed()
        self.budget = budget or FixedBudget()
        self.max_num_seqs = max_num_seqs
        self.max_chunk = max_chunk
        self.clock = clock

    @property
    def has_work(self) -> bool:
        """Whether anybody waits or runs."""
        return len(self.waiting) + len(self.running) > 0

    def refuse_unfit(self, request: Request) -> None:
        """Refuse a request that could not be held even alone: waiting would never help it."""
        if not self.store.fits(request.limit):
            raise RequestTooLargeError(
                f"The request may need room for {request.limit} tokens, more than the store "
                f"has for one ({self.store.total_tokens} in all); shorten the prompt, lower "
                "max_tokens, or give the engine more room."
            )

    def observe(self, seconds: float) -> None:
        """Tell the budget how long a step took and how much of the store is free after it."""
        self.budget.observe(seconds, self.store.free_tokens / self.store.total_tokens)

    def check(self) -> None:
        """Raise InvariantError unless queue, batch, counters and store agree."""
        require(len(self.running) <= self.max_num_seqs, f"{len(self.running)} requests run")
        for request in self.running:
            require(request not in self.waiting, f"{request} waits and runs")
            require(request.status in (Status.SCHEDULED, Status.RUNNING), f"{request} runs")
            require(
                0 <= request.num_computed_tokens <= request.num_tokens,
                f"{request}: computed tokens must chase the total",
            )
        for request in self.waiting:
            require(request.status in (Status.WAITING, Status.PREEMPTED), f"{request} waits")
            require(request.num_computed_tokens == 0, f"{request} waits with computed tokens")
        self.store.check(self.running)
