"""Random histories of a scheduler without a model: what comes, what ends, what is refused."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

ROUND_ROBIN = "round-robin"
POLICIES = ("fcfs", "sjf", "deadline", ROUND_ROBIN, "priority-with-ageing", "size-queues")
MOST_STEPS = 80


@dataclass(frozen=True)
class History:
    """One run: its settings, and what happens before each step."""

    room: int  # places of the store
    stored: int  # tokens of each prompt that the store has from the start
    budget: int
    seats: int
    policy: str
    quantum: int
    max_chunk: int | None
    arrivals: dict[int, list[tuple[int, int, int, float | None]]]  # prompt, output, class, deadline
    ends: dict[int, list[tuple[int, bool]]]  # number, whether it failed
    limits: dict[int, int]  # the budget's limit from this step on
    refused: dict[int, int]  # the request that the store refuses in this step

    def __str__(self) -> str:
        coming = "; ".join(
            f"before step {step} " + ", ".join(f"{a[0]} + {a[1]}" for a in some)
            for step, some in self.arrivals.items()
        )
        named = self.policy + (f" of {self.quantum}" if self.policy == ROUND_ROBIN else "")
        extra = [f"budget {limit} from step {step}" for step, limit in self.limits.items()]
        extra += [f"the store refuses {who} in step {step}" for step, who in self.refused.items()]
        extra += [f"{n} is ended before step {s}" for s, some in self.ends.items() for n, _ in some]
        return "; ".join(
            [
                f"{named}, room {self.room}, budget {self.budget}, at most {self.seats} run"
                + (f", max_chunk {self.max_chunk}" if self.max_chunk else "")
                + (f", {self.stored} tokens of each are stored" if self.stored else ""),
                f"prompt + output: {coming}",
                *extra,
            ]
        )


def random_history(name: str, seed: int) -> History:
    """A history in which room, budget and places are short, and things happen at one time."""

    rng = random.Random(f"{name} {seed}")
    some = rng.randint

    room, total = some(14, 48), some(2, 9)
    arrivals: dict[int, list[tuple[int, int, int, float | None]]] = {}
    for _ in range(total):
        prompt = some(1, room // 2)
        deadline = float(some(1, 30)) if rng.random() < 0.5 else None
        one = (prompt, some(1, min(9, room - prompt)), some(0, 2), deadline)
        arrivals.setdefault(some(0, 5) // 2 * 2, []).append(one)  # often several at once
    ends = {some(1, 12): [(some(0, total - 1), rng.random() < 0.5)]} if rng.random() < 0.4 else {}
    limits = {some(1, 8): some(1, 16), some(9, 14): some(1, 16)} if rng.random() < 0.5 else {}
    refused = {some(1, 9): some(0, total - 1) for _ in range(some(0, 2))}
    return History(
        room,
        some(1, 3) if rng.random() < 0.25 else 0,
        some(1, 16),
        some(1, 5),
        name,
        some(1, 4),
        [None, None, 1, 2, 3][some(0, 4)],
        dict(sorted(arrivals.items())),
        ends,
        limits,
        refused,
    )


def play(history: History) -> dict[str, Any]:
    """What a scheduler does with a history: each step, and how each request stands at the end.

    The scheduler, its policies and the stand-ins are those of the `nanovllm` imported now.
    """
    from nanovllm.batching.budget import AdaptiveBudget
    from nanovllm.batching.policies import (
        PriorityWithAging,
        RoundRobin,
        SizeQueues,
        make_policy,
    )
    from nanovllm.batching.request import Priority, Request, Status
    from nanovllm.batching.scheduler import Scheduler
    from nanovllm.batching.simulated import CountingStore, SimulatedSequence
    from nanovllm.generation.latency import ManualClock

    class Store(CountingStore):
        refused: Request | None = None

        def admit(self, request: Request) -> int:
            super().admit(request)
            stored = min(history.stored, request.sequence.num_prompt_tokens - 1, self.free_tokens)
            self.reserved[request] = stored
            self.free_tokens -= stored
            return stored

        def reserve(self, request: Request, num_tokens: int) -> bool:
            return request is not self.refused and super().reserve(request, num_tokens)

    clock, store = ManualClock(), Store(history.room)
    quick = {  # settings with which a few steps matter
        ROUND_ROBIN: lambda: RoundRobin(history.quantum),
        # no two scores are nearly equal, whatever the order of arithmetic
        "priority-with-ageing": lambda: PriorityWithAging(patience=9.594),
        "size-queues": lambda: SizeQueues(small=8, medium=20, patience=5.0),
    }
    policy = quick.get(history.policy, lambda: make_policy(history.policy))()
    budget = AdaptiveBudget(limit=history.budget, lowest=1, highest=16)
    scheduler = Scheduler(
        store,
        policy,
        budget,
        max_num_seqs=history.seats,
        max_chunk=history.max_chunk,
        clock=clock,
    )
    requests: list[Request] = []
    steps: list[list[Any]] = []
    last = max([*history.arrivals, *history.ends, *history.limits, *history.refused])
    while len(steps) <= last or (scheduler.has_work and len(steps) < MOST_STEPS):
        now = len(steps)
        for prompt, output, priority, deadline in history.arrivals.get(now, []):
            sequence = SimulatedSequence(len(requests), prompt, output)
            request = Request(
                len(requests), sequence, clock(), prompt + output - 1, list(Priority)[priority]
            )
            if deadline is not None:
                request.deadline = deadline
            requests.append(request)
            scheduler.add(request)
        for number, failed in history.ends.get(now, []):
            if number < len(requests) and not requests[number].ended:
                scheduler.end(requests[number], Status.FAILED if failed else Status.FINISHED)
        budget.limit = history.limits.get(now, budget.limit)
        refused = history.refused.get(now, -1)
        store.refused = requests[refused] if 0 <= refused < len(requests) else None
        plan = scheduler.schedule()
        clock.advance(1.0)
        scheduler.update(plan)
        for chunk in plan.chunks:
            if chunk.completes:
                chunk.request.sequence.append()
                if chunk.request.sequence.finished:
                    scheduler.end(chunk.request, Status.FINISHED)
        scheduler.check()
        steps.append(
            [
                sorted([c.request.number, c.start, c.length] for c in plan.chunks),
                plan.budget,
                sorted(request.number for request in plan.admitted),
                sorted(request.number for request in plan.preempted),
                [request.number for request in scheduler.queue()],
                store.free_tokens,
            ]
        )
    ends = [
        [r.status.value, r.num_preemptions, [r.time_in(status, clock()) for status in Status]]
        for r in requests
    ]
    return {"steps": steps, "ends": ends}


def picture(run: dict[str, Any]) -> str:
    """A run as rows of requests and columns of steps, drawn by lab 04's replay."""
    from nanovllm.batching.events import ChunkRun, Preempted, Queued, Stepped
    from nanovllm.batching.replay import Replay

    events: list[Any] = [Queued(number, 0, 0.0) for number in range(len(run["ends"]))]
    for at, (chunks, budget, _, preempted, queue, free) in enumerate(run["steps"]):
        events += [Preempted(number, 0, float(at)) for number in preempted]
        done = tuple(ChunkRun(number, 0, start, length) for number, start, length in chunks)
        events.append(Stepped(done, len(chunks), len(queue), budget, free, float(at), float(at)))
    return Replay(events).text()
