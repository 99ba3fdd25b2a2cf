"""Adaptive guesses under traffic, simulated: a step and a draft's forward take what they cost."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

import pytest

from nanovllm.batching.budget import FixedBudget
from nanovllm.batching.request import Request, Status
from nanovllm.batching.scheduler import Scheduler
from nanovllm.batching.simulated import CountingStore, SimulatedSequence
from nanovllm.speculative.adaptive import AdaptivePolicy
from nanovllm.speculative.costs import Costs
from nanovllm.speculative.credit import Credit
from nanovllm.speculative.guess_policy import FixedPolicy
from nanovllm.speculative.guessed_plan import GuessedChunk
from nanovllm.speculative.guessing_scheduler import SpeculativeScheduler
from nanovllm.speculative.proposer import Ask, Guesses

BASE, TOKEN, FORWARD, READ = 1.0, 0.01, 0.1, 0.0005  # seconds
EASY, HARD = 0.9, 0.05  # how often a guess stands
New = tuple[int, int, float]  # tokens of the prompt and of the answer, how often a guess stands
Arrivals = Callable[[random.Random, int, int], Iterable[New]]  # by step, and how many are there


class Traffic:
    """Requests that come and go, on a clock of their own; also the draft model."""

    def __init__(self, slow_calls: int) -> None:
        self.now, self.rng, self.slow_calls = 0.0, random.Random(0), slow_calls
        self.read: dict[Request, int] = {}
        self.preempted = 0
        self.rates: dict[Request, float] = {}

    def propose(self, asks: Sequence[Ask]) -> list[Guesses]:
        """The first calls take twelve times as long."""
        read = sum(ask.request.num_tokens - self.read.get(ask.request, 0) for ask in asks)
        self.read.update((ask.request, ask.request.num_tokens) for ask in asks)
        seconds = FORWARD * max(ask.most for ask in asks) + READ * read
        self.now += seconds * (12 if self.slow_calls > 0 else 1)
        self.slow_calls -= 1
        return [Guesses((7,) * ask.most, "draft") for ask in asks]

    def forget(self, request: Request) -> None:
        self.read.pop(request, None)

    def run(
        self, arrivals: Arrivals, steps: int, how: str, max_chunk: int | None = None,
        places: int = 10**7,
    ) -> float:  # fmt: skip
        """Tokens a second. how: "none" guesses, by the "policy" alone, or on "credit"."""
        costs, tokens, number = Costs(), 0, 0
        scheduler = SpeculativeScheduler(
            Scheduler(CountingStore(places), clock=lambda: self.now, budget=FixedBudget(512),
                      max_num_seqs=64, max_chunk=max_chunk),
            self,
            FixedPolicy(0) if how == "none" else AdaptivePolicy(4, costs),
            10, max_chunk=max_chunk, costs=costs, credit=Credit() if how == "credit" else None,
        )  # fmt: skip
        for step in range(steps):
            live = len(scheduler.running) + len(scheduler.waiting)
            for prompt, output, rate in arrivals(self.rng, step, live):
                sequence = SimulatedSequence(number, prompt, output)
                request = Request(number, sequence, self.now, limit=prompt + output - 1)
                self.rates[request], number = rate, number + 1
                scheduler.add(request)
            plan = scheduler.schedule()
            self.preempted += len(plan.preempted)
            self.now += BASE + TOKEN * plan.num_tokens
            for chunk in plan.chunks:
                tokens += self._advance(scheduler, chunk)
            scheduler.inner.store.commit(plan)
            for request in [r for r in scheduler.running if r.sequence.finished]:
                scheduler.end(request, Status.FINISHED)
                del self.rates[request]
            scheduler.observe(0.0)
            assert scheduler._read == self.read, "it knows what the draft has read, and no more"
        return tokens / self.now

    def _advance(self, scheduler: SpeculativeScheduler, chunk) -> int:
        """Compute a chunk; the tokens that it brings."""
        request = chunk.request
        guessed = len(chunk.guesses.token_ids) if isinstance(chunk, GuessedChunk) else 0
        stood = 0
        while stood < guessed and self.rng.random() < self.rates[request]:
            stood += 1
        if guessed:
            scheduler.guessing.judged(request, chunk.guesses, stood)
        request.num_computed_tokens = chunk.end - guessed + stood
        if request.status is Status.SCHEDULED:
            request.move_to(Status.RUNNING, self.now)
        new = 0
        while chunk.completes and new <= stood and not request.sequence.finished:
            request.sequence.append()
            new += 1
        return new


def closed(seats: int, prompt: tuple[int, int], output: tuple[int, int], *rates: float) -> Arrivals:
    """Whoever leaves makes room for the next."""

    def arrivals(rng: random.Random, step: int, live: int) -> Iterable[New]:
        return [
            (rng.randint(*prompt), rng.randint(*output), rng.choice(rates))
            for _ in range(seats - live)
        ]

    return arrivals


def beside_prompts(every: int) -> Arrivals:
    """One request generates; every so many steps there is one of a single token."""

    def arrivals(rng: random.Random, step: int, live: int) -> Iterable[New]:
        if live == 0:
            yield 50, 200, 0.8
        if step % every == 0:
            yield rng.randint(20, 40), 1, 0.8

    return arrivals


@pytest.mark.parametrize(
    ("arrivals", "max_chunk", "least"),
    [
        (closed(1, (10, 60), (100, 200), 0.8), None, 0.95),
        (closed(1, (10, 60), (100, 200), EASY, HARD), None, 0.9),
        (closed(1, (10, 60), (30, 40), EASY, HARD), None, 0.94),
        (closed(4, (10, 60), (30, 40), EASY, HARD), None, 0.94),
        (closed(8, (500, 1500), (40, 60), 0.8), None, 0.9),  # prompts beside warm drafts
        (closed(8, (10, 60), (2, 10), EASY), None, 0.97),
        (closed(16, (10, 60), (5, 20), EASY), None, 0.97),
        (beside_prompts(1), None, 0.94),
        (beside_prompts(2), None, 0.94),
        (beside_prompts(5), None, 0.94),
        (closed(1, (256, 256), (40, 60), 0.8), 128, 0.95),
        (closed(2, (1000, 2000), (40, 60), 0.8), 128, 0.94),
    ],
)  # fmt: skip
def test_guesses_that_pay_are_made(arrivals: Arrivals, max_chunk: int | None, least: float) -> None:
    """The policy alone knows no doubt, and these guesses all pay: what credit costs beside it."""
    none, alone, credit = (
        Traffic(0).run(arrivals, 2000, how, max_chunk) for how in ("none", "policy", "credit")
    )
    assert alone > 1.05 * none
    assert credit > least * alone


@pytest.mark.parametrize("seats", [1, 8, 32])
def test_guesses_that_never_stand_cost_little(seats: int) -> None:
    arrivals = closed(seats, (10, 60), (20, 60), HARD)
    none, credit = (Traffic(0).run(arrivals, 2000, how) for how in ("none", "credit"))
    assert credit > 0.985 * none


@pytest.mark.parametrize("seats", [1, 4])
def test_a_draft_that_is_slow_at_first_is_asked_again(seats: int) -> None:
    """Until it is compiled, say: what it costs is learnt by guessing alone."""
    arrivals = closed(seats, (10, 60), (100, 200), 0.8)
    fast, slow = (Traffic(calls).run(arrivals, 4000, "credit") for calls in (0, 3))
    assert slow > 0.85 * fast


def test_who_was_preempted_is_read_anew() -> None:
    """So that reading it all again is not learnt as what a guess costs."""
    traffic = Traffic(0)
    traffic.run(closed(4, (10, 60), (100, 200), EASY), 500, "policy", places=600)
    assert traffic.preempted > 5
