"""A scheduler around any scheduler: it lengthens the plan's chunks by guesses."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from statistics import fmean
from typing import Any

from nanovllm.batching.interface import SchedulerInterface
from nanovllm.batching.plan import Chunk, Plan
from nanovllm.batching.request import Request, Status
from nanovllm.speculative.costs import Costs
from nanovllm.speculative.credit import Credit, alike
from nanovllm.speculative.guess_policy import GuessPolicy
from nanovllm.speculative.guessed_plan import GuessedChunk
from nanovllm.speculative.proposer import Ask, Guesses, Proposer

# How many steps in a row pass as they are, for asking costs, too:
NAP = 16  # where the policy wants no guesses
SLEEP = 64  # where guesses do not pay
TIMED = 12  # to learn what a step without guesses takes


class SpeculativeScheduler:
    """Any scheduler; where its plan leaves budget and room, chunks that complete get guesses.

    Guesses never preempt anybody: not in this step, and not by taking the last blocks, which
    neighbours would miss in the next. All else is the scheduler's own.
    """

    def __init__(
        self,
        inner: SchedulerInterface,
        proposer: Proposer,
        policy: GuessPolicy,
        vocab_size: int,
        *,
        max_chunk: int | None = None,
        costs: Costs | None = None,
        credit: Credit | None = None,
        notify: Callable[[str], None] = lambda message: None,
    ) -> None:
        """credit: says by the clock when nobody is to guess; None: the policy alone does. notify:
        is told once of each kind of trouble with guesses, in a sentence."""
        self.inner, self.proposer, self.guessing = inner, proposer, policy
        self._unasked: Callable[[int], int] = getattr(policy, "rest", lambda steps: 0)
        self.vocab_size, self.max_chunk = vocab_size, max_chunk
        self.costs, self.credit, self.notify = costs or Costs(), credit, notify
        self._said: set[str] = set()
        self._lengthened: list[Request] = []  # in the last step
        # a machine that is busy with others says nothing about guesses
        self._timer = time.thread_time if inner.clock is time.perf_counter else inner.clock
        # a nap: steps that are left of it, whether this step is one, of how many requests
        self._nap, self._asleep, self._requests = 0, False, 0
        self._slept, self._stopped = 0, False  # its steps so far; whether guesses do not pay
        self._times: list[float] | None = None  # of a nap's steps, where these are timed
        self._plan, self._tried, self._started, self._drafting = Plan(), True, 0.0, 0.0  # this step
        self._wanted = False  # guesses, in this step, whether any were found
        self._drafts: dict[Request, int] = {}  # guesses of the draft model in this step
        # Of each request, the tokens that the draft model has read; those that it had yet to read.
        self._read: dict[Request, int] = {}
        self._unread = 0
        # Whether the step before this one had guesses (of the draft model) too: the first one in a
        # row finds cold caches, and says little about those that follow.
        self._warm = self._warm_draft = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    # what an engine reads in each step, without the way through __getattr__
    running = property(attrgetter("inner.running"))
    waiting = property(attrgetter("inner.waiting"))
    store = property(attrgetter("inner.store"))
    update = property(attrgetter("inner.update"))

    @property
    def has_guesses(self) -> bool:
        """Whether the newest plan has some."""
        return bool(self._lengthened)

    @property
    def budget(self) -> Any:
        """The scheduler's own; whoever sets it (a brake does) sets it there."""
        return self.inner.budget

    @budget.setter
    def budget(self, budget: Any) -> None:
        self.inner.budget = budget

    def schedule(self) -> Plan:
        """The plan of the scheduler, lengthened by guesses (given).

        First, blocks of guesses that fell go back to a store that takes them: others may want them.
        """
        if self._lengthened:
            self._trim()
        if not self._nap and self._slept and self.credit is not None:
            self._wake(self.credit)
        self._started = self._timer()
        plan = self.inner.schedule()
        self._asleep = self._nap > 0 and self._goes_on(plan)
        if self._nap and not self._asleep:
            if self._slept and self.credit is not None:
                self._wake(self.credit)
            self._nap, self._times = 0, None
        for request in plan.preempted:
            self._read.pop(request, None)
        complete = 0 if self._asleep else sum(chunk.completes for chunk in plan.chunks)
        self._tried = complete > 0 and (self.credit is None or self.credit.allows(complete))
        if self._tried:
            plan = self.lengthen(plan)
        else:
            for request in plan.preempted:
                self.proposer.forget(request)
        if self._asleep:
            return plan
        self._lengthened = [c.request for c in plan.chunks if isinstance(c, GuessedChunk)]
        self._plan = plan
        return plan

    def _trim(self) -> None:
        trim = getattr(self.inner.store, "trim", lambda request: None)
        for request in self._lengthened:
            if not request.ended:
                trim(request)
        self._lengthened = []

    def _goes_on(self, plan: Plan) -> bool:
        """Whether a nap does, in a step of this plan: not where others run than before it."""
        self._warm = self._warm_draft = False
        requests = len(plan.chunks)
        if requests == self._requests and (
            requests == plan.num_tokens or (self._stopped and self._times is None)
        ):
            self._nap -= 1
            self._slept += 1
            return True
        if self._stopped and requests and alike(requests, self._requests):
            self._nap -= 1
            return True
        return False

    def lengthen(self, plan: Plan) -> Plan:
        """The plan, with guesses behind its chunks that complete (GuessedChunk); all else stays.

        First the proposer forgets every request that the plan has preempted. Then the policy,
        `guessing`, says how many guesses each chunk that completes is to have. It is told the
        requests of these chunks, in the plan's order; the most that each can have, looked at
        alone; and the tokens of the plan. Where no chunk completes, it may be asked about nobody,
        or not at all. The most is what three limits leave: the plan's
        `budget_left`; `limit` of the request, which no computed token may pass; and `max_chunk`,
        where there is one, for the chunk's own tokens and its guesses together. What the policy
        wants beyond it is not asked for. `ask` is given all that is wanted in this step, in one
        call and in the plan's order; nobody is asked for 0 guesses or fewer, and `ask` is not
        called where nobody is.

        All guesses of the step together are no more than `budget_left`: the first chunks of the
        plan have theirs first, and what one of them does not use is there for the next. Of its
        guesses a chunk has the first ones, as many as `room` says; without any it stays a Chunk.

        >>> from nanovllm.batching.scheduler import Scheduler
        >>> from nanovllm.batching.simulated import CountingStore, SimulatedSequence
        >>> from nanovllm.speculative.guess_policy import FixedPolicy
        >>> class Sevens:
        ...     def propose(self, asks):
        ...         return [Guesses((7,) * ask.most) for ask in asks]
        ...     def forget(self, request):
        ...         pass
        >>> scheduler = SpeculativeScheduler(Scheduler(CountingStore(100)), Sevens(),
        ...                                  FixedPolicy(4), vocab_size=10)
        >>> scheduler.add(Request(0, SimulatedSequence(0, 5, 4), arrival=0.0, limit=8))
        >>> [chunk] = scheduler.schedule().chunks
        >>> chunk.length, chunk.guesses.token_ids
        (8, (7, 7, 7))
        """
        raise NotImplementedError("lab08 task 2: SpeculativeScheduler.lengthen")

    def ask(self, asks: Sequence[Ask]) -> dict[Request, Guesses]:
        """What the proposer says, as far as it can be used; an error costs the guesses alone."""
        self._wanted = True
        started = self._timer()
        try:
            found = self.proposer.propose(asks)
            pairs = list(zip(asks, found, strict=True))
        except NotImplementedError:
            raise
        except Exception as error:
            self._say("error", f"guesses are dropped, for the proposer failed: {error!r}")
            for ask in asks:
                self.proposer.forget(ask.request)
                self._read.pop(ask.request, None)
            return {}
        guessed = {ask.request: self._usable(guesses.first(ask.most)) for ask, guesses in pairs}
        self._drafting = self._timer() - started
        self._drafts = {
            request: len(guesses.token_ids)
            for request, guesses in guessed.items()
            if guesses.source == "draft"
        }
        self._unread = sum(one.num_tokens - self._read.get(one, 0) for one in self._drafts)
        self._read.update((one, one.num_tokens) for one in self._drafts)
        return guessed

    def _usable(self, guesses: Guesses) -> Guesses:
        for place, token_id in enumerate(guesses.token_ids):
            if not 0 <= token_id < self.vocab_size:
                self._say(
                    "token",
                    f"a guess is token {token_id!r}, but ids go from 0 to {self.vocab_size - 1}; "
                    "it is dropped, with those behind it",
                )
                return guesses.first(place)
        return guesses

    def _say(self, kind: str, message: str) -> None:
        """Once for each kind of trouble."""
        if kind not in self._said:
            self._said.add(kind)
            self.notify(message)

    def room(self, chunk: Chunk, guesses: int) -> int:
        """How many of so many guesses behind a chunk the store has room for; that is reserved then.

        None that would take a block which neighbours may need for their next token.
        """
        if not guesses:
            return 0
        store, request = self.inner.store, chunk.request
        places = len(store.block_ids(request)) * store.block_size - chunk.start
        if places < chunk.length + guesses:
            enough = 2 * store.block_size * (1 + len(self.inner.running))
            if store.free_tokens < enough:
                guesses = max(places - chunk.length, 0)
        return guesses if guesses and store.reserve(request, chunk.length + guesses) else 0

    def observe(self, seconds: float) -> None:
        """A step took so long."""
        if self._asleep:
            if self._times is not None and self._slept > len(self._times):
                self._times.append(self._timer() - self._started)
            self.inner.observe(seconds)
            return
        own = self._timer() - self._started
        self._learn(own)
        if self.credit is not None and self._plan.chunks:
            self._plan_nap(self.credit, own)
        self._drafting, self._drafts, self._wanted = 0.0, {}, False
        self.inner.observe(seconds)

    def _learn(self, own: float) -> None:
        """What steps and guesses cost."""
        if self._warm or not self._lengthened:
            self.costs.step(self._plan.num_tokens, own - self._drafting)
        counts = list(self._drafts.values())
        if self._warm_draft and self._unread <= sum(counts) + 2 * len(counts):  # and no prompt
            self.costs.guessing(counts, self._drafting)
        self._warm, self._warm_draft = bool(self._lengthened), any(counts)

    def _plan_nap(self, credit: Credit, own: float) -> None:
        """After a step that took so long: for how many steps nobody is asked now."""
        if self._tried:
            credit.tried(self._plan, own, self._drafting, self.costs.token)
        requests = self._requests = len(self._plan.chunks)
        if not all(chunk.completes for chunk in self._plan.chunks):
            return  # the next step is of others
        self._stopped = credit.stopped(requests)
        due = credit.due(requests)
        if due and credit.untimed(requests) > TIMED:  # prompts are read all the time
            credit.plain(requests, self.costs.base + self.costs.token * requests, exact=False)
            return
        self._times = [] if due else None
        if due:
            self._nap = TIMED
        elif self._stopped:
            self._nap = SLEEP
        elif not self._wanted and self._could():
            self._nap = self._unasked(NAP)

    def _could(self) -> bool:
        """Whether anybody could have had guesses in this step: else nothing follows from none."""
        most = self.max_chunk or self._plan.num_tokens + 1
        return self._plan.budget_left > 0 and any(
            chunk.end < chunk.request.limit and chunk.length < most for chunk in self._plan.chunks
        )

    def _wake(self, credit: Credit) -> None:
        """After a nap; perhaps steps are to be timed at once."""
        credit.slept(self._requests, self._slept, of_arm=self._times is None)
        if self._times:  # the first ones still differ
            enough = len(self._times) >= TIMED // 2
            seconds = fmean(self._times[len(self._times) // 2 :])
            credit.plain(self._requests, seconds, enough)
            if enough:
                self.costs.paced(self._requests, seconds)
        timed, self._times, self._slept = self._times is not None, None, 0
        if not timed and credit.due(self._requests):
            self._times, self._nap, self._stopped = [], TIMED, credit.stopped(self._requests)

    def end(self, request: Request, status: Status) -> None:
        """Let go of a request; its guesses and its history go too."""
        self.proposer.forget(request)
        self.guessing.forget(request)
        self._read.pop(request, None)
        self.inner.end(request, status)
