"""`Scheduler`: who computes what in the next step. No tensors: counters, a queue and a clock."""

### BEGIN SOLUTION
import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from nanovllm.batching.budget import Budget, FixedBudget, token_budget
from nanovllm.batching.errors import ConfigError, RequestTooLargeError, require
from nanovllm.batching.plan import Chunk, Plan
from nanovllm.batching.policies import FirstComeFirstServed, Policy, Rank
from nanovllm.batching.request import Request, Status
from nanovllm.batching.store import SchedulingStore

Clock = Callable[[], float]


class _WaitingQueue:
    """Who waits, kept in the policy's order; nothing in it remembers who has left."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._entries: list[tuple[Rank, Request]] = []  # sorted
        self._rank_of: dict[Request, Rank] = {}  # where in _entries to find each
        self._ranked_at: float | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        return (request for _, request in self._entries)

    def __contains__(self, request: Request) -> bool:
        return request in self._rank_of

    def push(self, request: Request, now: float) -> None:
        """Add a request at its place. Cost: a binary search and a move of pointers."""
        rank = self._rank_of[request] = self.policy.rank(request, now)
        insort(self._entries, (rank, request))

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it stands: admitted, or aborted while it waited."""
        at = bisect_left(self._entries, (self._rank_of.pop(request),))
        del self._entries[at]

    def first(self, now: float) -> Request:
        """Who goes first at this moment; with a policy that ages, all are ranked again."""
        if self.policy.ages and self._ranked_at != now:
            self._ranked_at = now
            self._rank_of = {request: self.policy.rank(request, now) for request in self}
            self._entries = sorted((rank, request) for request, rank in self._rank_of.items())
        return self._entries[0][1]


@dataclass
class _Draft:
    """A plan in the making."""

    now: float
    budget: int  # tokens still to give away
    chunks: dict[Request, Chunk] = field(default_factory=dict)
    admitted: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)


class Scheduler:
    """Those that run go on, then come those that wait, as far as room and budget go."""

    def __init__(
        self,
        store: SchedulingStore,
        policy: Policy | None = None,
        budget: Budget | None = None,
        *,
        max_num_seqs: int = 16,
        max_chunk: int | None = None,
        clock: Clock = time.perf_counter,
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
        self.waiting = _WaitingQueue(self.policy)
        self.running: dict[Request, None] = {}  # in order of admission; a dict to leave in O(1)

    @property
    def has_work(self) -> bool:
        """Whether anybody waits or runs."""
        return bool(self.waiting or self.running)

    def queue(self) -> list[Request]:
        """Those that wait, in the order in which they would be admitted now: a new list."""
        now = self.clock()
        return sorted(self.waiting, key=lambda request: self.policy.rank(request, now))

    def refuse_unfit(self, request: Request) -> None:
        """Refuse a request that could not be held even alone: waiting would never help it."""
        if not self.store.fits(request.limit):
            raise RequestTooLargeError(
                f"The request may need room for {request.limit} tokens, more than the store "
                f"has for one ({self.store.total_tokens} in all); shorten the prompt, lower "
                "max_tokens, or give the engine more room."
            )

    def add(self, request: Request) -> None:
        """Queue a new request. Raises RequestTooLargeError for one that can never fit."""
        self.refuse_unfit(request)
        self.waiting.push(request, self.clock())

    def schedule(self) -> Plan:
        """Make the plan of the next step; nobody to run gives a plan without chunks."""
        draft = _Draft(self.clock(), budget=0)
        self._hand_over(draft)
        turns_handed_on = len(draft.preempted)
        draft.budget = self._budget()
        self._continue(draft)
        if len(draft.preempted) == turns_handed_on:
            self._admit(draft)
        return Plan(
            tuple(draft.chunks.values()),
            tuple(draft.admitted),
            tuple(draft.preempted),
            sum(chunk.length for chunk in draft.chunks.values()) + draft.budget,
        )

    def _budget(self) -> int:
        """This step's tokens, by `token_budget`; free places and the decodes counted now."""
        decodes = sum(request.remaining == 1 for request in self.running)
        return token_budget(
            hardware=self.budget.highest,
            compute=self.budget.limit,
            memory=self.store.free_tokens,
            decodes=max(decodes, 1 if self.running else 0),
        )

    def _hand_over(self, draft: _Draft) -> None:
        """If the first in the queue finds no seat or no room, end one turn that is over."""
        if not self.waiting:
            return
        over = next((r for r in self.running if self.policy.turn_is_over(r)), None)
        if over is not None and not self._can_admit(self.waiting.first(draft.now)):
            self._preempt(over, draft)

    def _continue(self, draft: _Draft) -> None:
        """Give every running request its next chunk: decodes first, then unfinished prompts."""
        remaining = {request: request.remaining for request in self.running}
        decodes = [request for request, tokens in remaining.items() if tokens == 1]
        prompts = [request for request, tokens in remaining.items() if tokens > 1]
        for request in decodes + prompts:
            if request in self.running:  # not preempted a moment ago
                self._plan_chunk(request, draft)

    def _plan_chunk(self, request: Request, draft: _Draft) -> None:
        """Reserve room for a running request's next chunk, preempting if need be, and plan it."""
        length = self._chunk_length(request, draft.budget)
        while length and not self.store.reserve(request, length):
            victim = self.policy.victim(self.running, draft.now)
            self._preempt(victim, draft)
            if victim is request:
                return
        if length:
            self._take(request, length, draft)

    def _take(self, request: Request, length: int, draft: _Draft) -> None:
        """Put the request's next `length` tokens into the plan, and pay for them."""
        start = request.num_computed_tokens
        draft.chunks[request] = Chunk(request, start, length, request.num_tokens)
        draft.budget -= length

    def _chunk_length(self, request: Request, budget: int) -> int:
        """Tokens of the next chunk: what remains, within the budget and max_chunk; may be 0."""
        return min(request.remaining, budget, self.max_chunk or budget)

    def _can_admit(self, request: Request) -> bool:
        """Whether there is a seat, and room in the store."""
        return len(self.running) < self.max_num_seqs and self.store.can_admit(request)

    def _admit(self, draft: _Draft) -> None:
        """Let requests in, in the policy's order, while there are tokens, seats and room."""
        while self.waiting and draft.budget and len(self.running) < self.max_num_seqs:
            request = self.waiting.first(draft.now)
            if not self.store.can_admit(request):
                return
            self.waiting.remove(request)
            request.num_computed_tokens = self.store.admit(request)
            request.move_to(Status.SCHEDULED, draft.now)
            request.turn_start = request.num_output_tokens
            self.running[request] = None
            draft.admitted.append(request)
            length = self._chunk_length(request, draft.budget)
            if not self.store.reserve(request, length):
                return  # it is in; its first chunk waits for room
            self._take(request, length, draft)

    def _preempt(self, request: Request, draft: _Draft) -> None:
        """Send a running request back to the queue; what it had computed is lost."""
        chunk = draft.chunks.pop(request, None)
        if chunk is not None:
            draft.budget += chunk.length
        del self.running[request]
        self.store.suspend(request)
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        request.move_to(Status.PREEMPTED, draft.now)
        self.waiting.push(request, draft.now)
        draft.preempted.append(request)

    def update(self, plan: Plan) -> None:
        """The plan's chunks have been computed: count their tokens; SCHEDULED becomes RUNNING."""
        now = self.clock()
        for chunk in plan.chunks:
            chunk.request.num_computed_tokens = chunk.end
            if chunk.request.status is Status.SCHEDULED:
                chunk.request.move_to(Status.RUNNING, now)

    def observe(self, seconds: float) -> None:
        """Tell the budget how long a step took and how much of the store is free after it."""
        self.budget.observe(seconds, self.store.free_tokens / self.store.total_tokens)

    def end(self, request: Request, status: Status) -> None:
        """Let go of a request that ends, from the queue or the batch; FINISHED or FAILED."""
        if request in self.running:
            del self.running[request]
            self.store.release(request)
        else:
            self.waiting.remove(request)
            self.store.forget(request)
        request.move_to(status, self.clock())

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


### END SOLUTION
