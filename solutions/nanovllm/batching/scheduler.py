"""`Scheduler`: who computes what in the next step. No tensors: counters, a queue and a clock."""

### BEGIN SOLUTION
from dataclasses import dataclass, field
from typing import Any

from nanovllm.batching.budget import token_budget
from nanovllm.batching.plan import Chunk, Plan
from nanovllm.batching.request import Request, Status
from nanovllm.batching.scheduler_base import SchedulerBase
from nanovllm.batching.waiting_queue import WaitingQueue


@dataclass
class _Draft:
    """A plan in the making."""

    now: float
    budget: int = 0  # tokens still to give away
    chunks: dict[Request, Chunk] = field(default_factory=dict)
    admitted: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)


class Scheduler(SchedulerBase):
    """Those that run go on, then come those that wait, as far as room and budget go."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.waiting = WaitingQueue(self.policy)
        self.running: dict[Request, None] = {}  # in order of admission; a dict to leave in O(1)

    def queue(self) -> list[Request]:
        """Those that wait, in the order in which they would be admitted now: a new list."""
        now = self.clock()
        return sorted(self.waiting, key=lambda request: self.policy.rank(request, now))

    def add(self, request: Request) -> None:
        """Queue a new request. Raises RequestTooLargeError for one that can never fit."""
        self.refuse_unfit(request)
        self.waiting.push(request, self.clock())

    def schedule(self) -> Plan:
        """Make the plan of the next step; nobody to run gives a plan without chunks."""
        draft = _Draft(self.clock())
        self._end_a_turn(draft)
        turns_ended = len(draft.preempted)
        draft.budget = budget = self._budget()
        self._continue(draft)
        if len(draft.preempted) == turns_ended:
            self._admit(draft)
        chunks = tuple(draft.chunks.values())
        return Plan(chunks, tuple(draft.admitted), tuple(draft.preempted), budget)

    def _budget(self) -> int:
        """This step's tokens, by `token_budget`; free places and the decodes counted now."""
        decodes = sum(request.remaining == 1 for request in self.running)
        return token_budget(
            hardware=self.budget.highest,
            compute=self.budget.limit,
            memory=self.store.free_tokens,
            decodes=max(decodes, 1 if self.running else 0),
        )

    def _end_a_turn(self, draft: _Draft) -> None:
        """If the first in the queue cannot come in, send away whom the policy displaces for it."""
        if not self.waiting:
            return
        first = self.waiting.first(draft.now)
        over = self.policy.displaced(first, self.running, draft.now)
        if over and not self._can_admit(first):
            self._preempt(over, draft)

    def _can_admit(self, request: Request) -> bool:
        """Whether there is a place in the batch, and room in the store."""
        return len(self.running) < self.max_num_seqs and self.store.can_admit(request)

    def _continue(self, draft: _Draft) -> None:
        """Give every running request its next chunk: decodes first, then unfinished prompts.

        Where the store has no room, victims give way, perhaps the request itself.
        """
        for request in sorted(self.running, key=lambda request: request.remaining > 1):
            length = self._chunk_length(request, draft)
            while length and request in self.running:
                if self.store.reserve(request, length):
                    self._take(request, length, draft)
                    break
                self._preempt(self.policy.victim(self.running, draft.now), draft)

    def _chunk_length(self, request: Request, draft: _Draft) -> int:
        """Tokens of the next chunk: what remains, within the budget and max_chunk; may be 0."""
        return min(request.remaining, draft.budget, self.max_chunk or draft.budget)

    def _take(self, request: Request, length: int, draft: _Draft) -> None:
        """Put the request's next `length` tokens into the plan, and pay for them."""
        start = request.num_computed_tokens
        draft.chunks[request] = Chunk(request, start, length, request.num_tokens)
        draft.budget -= length

    def _admit(self, draft: _Draft) -> None:
        """Let requests in, in the policy's order, while there are tokens, places and room."""
        while self.waiting and draft.budget:
            request = self.waiting.first(draft.now)
            if not self._can_admit(request):
                return
            self.waiting.remove(request)
            request.num_computed_tokens = self.store.admit(request)
            request.move_to(Status.SCHEDULED, draft.now)
            request.turn_start = request.num_output_tokens
            self.running[request] = None
            draft.admitted.append(request)
            length = self._chunk_length(request, draft)
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

    def end(self, request: Request, status: Status) -> None:
        """Let go of a request that ends, from the queue or the batch; FINISHED or FAILED."""
        if request in self.running:
            del self.running[request]
            self.store.release(request)
        else:
            self.waiting.remove(request)
            self.store.forget(request)
        request.move_to(status, self.clock())


### END SOLUTION
