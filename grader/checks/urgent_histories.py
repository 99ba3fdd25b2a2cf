"""Random histories under `UrgentFirst`, and which rule of its contract a step breaks."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

MOST_STEPS = 400


@dataclass(frozen=True)
class Coming:
    """A request, and the step before which it comes."""

    step: int
    prompt: int
    output: int
    priority: int
    deadline: float = float("inf")


@dataclass(frozen=True)
class UrgentHistory:
    """One run; a step takes a second."""

    room: int  # places of the store
    seats: int
    budget: int
    patience: float
    coming: tuple[Coming, ...]
    ends: tuple[tuple[int, int], ...] = ()  # before this step, this number is given up

    def __str__(self) -> str:
        coming = "; ".join(
            f"before step {c.step} {c.prompt} + {c.output} of priority {c.priority}"
            + ("" if c.deadline == float("inf") else f", due at {c.deadline:g}")
            for c in self.coming
        )
        ends = "".join(f"; {n} is given up before step {s}" for s, n in self.ends)
        return (
            f"patience {self.patience:g} s, room {self.room}, budget {self.budget}, at most "
            f"{self.seats} run; prompt + output: {coming}{ends}"
        )


@dataclass
class Played:
    """What came of a history: the first broken rule, or None; events to draw; times by number."""

    broken: str | None = None
    events: list[Any] = field(default_factory=list)
    preempted: list[list[Any]] = field(default_factory=list)  # [second, number]
    admitted: list[list[Any]] = field(default_factory=list)
    requests: list[Any] = field(default_factory=list)


def urgent_history(seed: int, tight: bool) -> UrgentHistory:
    """A history in which places in the batch are short, and with `tight` also room."""
    rng = random.Random(f"urgent {seed} {tight}")
    some = rng.randint
    seats = some(1, 4)
    coming = [
        Coming(
            some(0, 24) // 3 * 3,
            some(1, 12),
            some(1, 14),
            rng.choice([-40, -2, -1, 0, 0, 1, 1, 2, 3, 9]),
            float(some(1, 60)) if rng.random() < 0.5 else float("inf"),
        )
        for _ in range(some(3, 10))
    ]
    room = max(some(14, 36), *(one.prompt + one.output for one in coming)) if tight else 1000
    ends = ((some(1, 20), some(0, 3)),) if rng.random() < 0.3 else ()
    coming.sort(key=lambda one: one.step)
    return UrgentHistory(room, seats, some(2, 24), float(some(2, 12)), tuple(coming), ends)


def level(request: Any, now: float, patience: float) -> int:
    """The contract's: the priority, less one for each full patience in the queue."""
    return request.priority - int(request.waited(now) // patience)


def in_order(requests: Any, now: float, patience: float) -> list[Any]:
    """By level, deadline, arrival and number."""
    return sorted(
        requests, key=lambda r: (level(r, now, patience), r.deadline, r.arrival, r.number)
    )


def play(history: UrgentHistory, policy: Any = None) -> Played:
    """Run a history through lab 04's Scheduler, up to the first broken rule.

    Without a policy, it is the UrgentFirst of the `nanovllm` imported now.
    """
    from nanovllm.batching.budget import FixedBudget
    from nanovllm.batching.events import ChunkRun, Preempted, Queued, Stepped
    from nanovllm.batching.request import Request, Status
    from nanovllm.batching.scheduler import Scheduler
    from nanovllm.batching.simulated import CountingStore, SimulatedSequence
    from nanovllm.batching.urgent_first import UrgentFirst
    from nanovllm.generation.latency import ManualClock

    class Store(CountingStore):
        refused = 0

        def reserve(self, request: Request, num_tokens: int) -> bool:
            well = super().reserve(request, num_tokens)
            self.refused += not well
            return well

    clock, store, played = ManualClock(), Store(history.room), Played()
    scheduler = Scheduler(
        store,
        policy or UrgentFirst(patience=history.patience),
        FixedBudget(history.budget),
        max_num_seqs=history.seats,
        clock=clock,
    )
    last = max((one.step for one in history.coming), default=0)
    for step in range(MOST_STEPS):
        now = clock()
        for one in history.coming:
            if one.step == step:
                number = len(played.requests)
                sequence = SimulatedSequence(number, one.prompt, one.output)
                limit = one.prompt + one.output - 1
                request = Request(number, sequence, now, limit, one.priority, deadline=one.deadline)
                played.requests.append(request)
                scheduler.add(request)
                played.events.append(Queued(number, 0, now))
        for when, number in history.ends:
            if when == step and number < len(played.requests):
                request = played.requests[number]
                if not request.ended:
                    scheduler.end(request, Status.FINISHED)
        if not scheduler.has_work and step > last:
            return played
        before = Before(scheduler, now, history)
        store.refused = 0
        plan = scheduler.schedule()
        played.broken = before.broken(scheduler, plan, store.refused)
        played.preempted += [[now, request.number] for request in plan.preempted]
        played.admitted += [[now, request.number] for request in plan.admitted]
        played.events += [Preempted(request.number, 0, now) for request in plan.preempted]
        done = tuple(ChunkRun(c.request.number, 0, c.start, c.length) for c in plan.chunks)
        counts = len(scheduler.running), len(scheduler.waiting), plan.budget, store.free_tokens
        played.events.append(Stepped(done, *counts, now, now))
        if played.broken:
            played.broken = f"step {step}: {played.broken}"
            return played
        clock.advance(1.0)
        scheduler.update(plan)
        for chunk in plan.chunks:
            if chunk.completes:
                chunk.request.sequence.append()
                if chunk.request.sequence.finished:
                    scheduler.end(chunk.request, Status.FINISHED)
        scheduler.check()
    return played  # with so short a patience some may go on sending each other away


class Before:
    """What a scheduler stood before when it planned, and what the contract says to it."""

    def __init__(self, scheduler: Any, now: float, history: UrgentHistory) -> None:
        self.now, self.patience = now, history.patience
        self.queue = scheduler.queue()
        self.order = in_order(scheduler.waiting, now, history.patience)
        self.running = list(scheduler.running)
        self.first = self.order[0] if self.order else None
        self.may_come_in = self.first is not None and (
            len(self.running) < history.seats and scheduler.store.can_admit(self.first)
        )

    def level(self, request: Any) -> int:
        """A request's level in this step."""
        return level(request, self.now, self.patience)

    def broken(self, scheduler: Any, plan: Any, refused: int) -> str | None:
        """The rule that this plan breaks, in words; or None."""
        if self.queue != self.order:
            return f"the queue is {_numbers(self.queue)}, by the contract {_numbers(self.order)}"
        out = list(plan.preempted)
        least = min((self.level(request) for request in out), default=None)
        for request in scheduler.running:
            if least is not None and request not in plan.admitted and self.level(request) > least:
                return (
                    f"{_numbers(out)} had to give way, with level {least}, but {request.number}, "
                    f"with level {self.level(request)}, runs on"
                )
        if self.first is None:
            return f"{_numbers(out)} displaced, and nobody waits" if out and not refused else None
        urgent = self.level(self.first)
        if not refused and len(out) > 1:
            return f"{_numbers(out)} are displaced in one step"
        if not refused and out and self.may_come_in:
            return f"{out[0].number} is displaced, but {self.first.number} can come in as it is"
        if not refused and out and urgent >= self.level(out[0]):
            return (
                f"{out[0].number}, with level {self.level(out[0])}, is displaced by "
                f"{self.first.number}, with level {urgent}"
            )
        if not self.may_come_in and not out and any(self.level(r) > urgent for r in self.running):
            return (
                f"{self.first.number}, with level {urgent}, cannot come in, and displaces nobody "
                f"of levels {[self.level(r) for r in self.running]}"
            )
        return None


def _numbers(requests: Any) -> list[int]:
    return [request.number for request in requests]


def shrunk(history: UrgentHistory) -> UrgentHistory:
    """A history that breaks a rule, without the requests that it does not need for that."""
    for at in range(len(history.coming) - 1, -1, -1):
        fewer = replace(history, coming=history.coming[:at] + history.coming[at + 1 :], ends=())
        if play(fewer).broken:
            history = fewer
    return history
