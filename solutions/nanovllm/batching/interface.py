"""What the engine asks of a scheduler, and the world of an engine: all that is public (given).

`Engine(model, make_scheduler=...)` takes any class with the first interface, or a function that
wraps one. The store's interface is in store.py, a plan's in plan.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from nanovllm.batching.request import Priority, Request, Status
from nanovllm.generation.events import Sampled

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from nanovllm.batching.budget import Budget
    from nanovllm.batching.events import EngineEvent
    from nanovllm.batching.plan import Plan
    from nanovllm.batching.policies import Policy
    from nanovllm.batching.store import KVStore, SchedulingStore
    from nanovllm.generation.params import SamplingParams

Outcome = Sampled | Exception | None  # of a chunk: a token, an error, or nothing to draw yet


class SchedulerInterface(Protocol):
    """Decides what each step computes: add, schedule, update, end.

    Made by `Scheduler(store, policy=None, budget=None, *, max_num_seqs=16, max_chunk=None,
    clock=time.perf_counter)`; without a policy it is FirstComeFirstServed, without a budget
    FixedBudget. max_num_seqs: the most requests that run at once. max_chunk: the most tokens of
    one request in one step, None for no such limit; ConfigError if either is below 1. It keeps no
    tensors, and reads the time from its clock alone.

    >>> from nanovllm.batching.scheduler import Scheduler
    >>> from nanovllm.batching.simulated import CountingStore, SimulatedSequence
    >>> scheduler: SchedulerInterface = Scheduler(CountingStore(100))
    >>> request = Request(0, SimulatedSequence(0, 5, 9), arrival=0.0, limit=13)
    >>> scheduler.add(request)
    >>> plan = scheduler.schedule()
    >>> [(chunk.start, chunk.length) for chunk in plan.chunks], plan.budget_left
    ([(0, 5)], 95)
    >>> scheduler.update(plan)
    >>> request.num_computed_tokens, request in scheduler.running, len(scheduler.waiting)
    (5, True, 0)
    """

    store: SchedulingStore
    policy: Policy
    budget: Budget
    clock: Callable[[], float]

    @property
    def running(self) -> Collection[Request]:
        """The batch, in the order of admission. Read it; only the scheduler changes it."""
        ...

    @property
    def waiting(self) -> Collection[Request]:
        """The queue, in any order: new requests, and those that were preempted."""
        ...

    @property
    def has_work(self) -> bool:
        """Whether anybody waits or runs."""
        ...

    def queue(self) -> list[Request]:
        """Those that wait, in the order in which they would be admitted now: a new list."""
        ...

    def refuse_unfit(self, request: Request) -> None:
        """Raise RequestTooLargeError if the store could not hold `request.limit` tokens at all.

        The message says how many tokens it needs.
        """

    def add(self, request: Request) -> None:
        """Queue a new request. Raises RequestTooLargeError as `refuse_unfit`."""

    def schedule(self) -> Plan:
        """The plan of the next step, by the handout's rules.

        Room is reserved in the store for every chunk. Who is admitted is SCHEDULED, and what
        `store.admit` returns of it is computed already. Who is preempted is PREEMPTED, counts one
        more preemption, and has nothing computed. A plan without chunks says that nobody can run.
        One reading of the clock holds for all of it.
        """
        ...

    def update(self, plan: Plan) -> None:
        """These chunks have been computed: count their tokens; SCHEDULED becomes RUNNING.

        `plan` may have fewer chunks than `schedule` gave: those that failed are left out.
        """

    def observe(self, seconds: float) -> None:
        """A step took so long: the budget learns it, and which share of the store is free now.

        Engine and simulator call it once after each step that computed something; whether the
        simulator calls it after others, too, is left open.
        """

    def end(self, request: Request, status: Status) -> None:
        """Let go of a request, wherever it is; it becomes FINISHED or FAILED.

        The store is to `release` one that runs, and to `forget` one in the queue. Nothing of the
        request stays here.
        """

    def check(self) -> None:
        """Raise InvariantError unless its own data agree with themselves and with the store."""


SchedulerMaker = Callable[..., SchedulerInterface]


class UrgentFirstInterface(Protocol):
    """A Policy that reads priorities and deadlines, ages, and displaces: `priority` by name.

    Made by `UrgentFirst(patience=60.0)`; ConfigError unless patience is above 0 (infinite: nobody
    ages). The *level* of a request is its priority, less one for each full `patience` seconds of
    all its time in the queue. One object may serve several schedulers, and is asked at any moment,
    as often as one likes: an answer depends on what is asked alone, and changes nothing. Being a
    Policy, it has a `key`, too; nobody asks for it.
    """

    name: str
    ages: bool
    reads_priority: bool
    reads_deadline: bool

    def rank(self, request: Request, now: float) -> tuple[float, ...]:
        """Smallest first: the lower level, then the earlier deadline, the arrival, the number."""
        ...

    def victim(self, running: Iterable[Request], now: float) -> Request:
        """Whom to preempt when there is no room: the one with the largest rank."""
        ...

    def displaced(self, first: Request, running: Collection[Request], now: float) -> Request | None:
        """Who of those that run gives way to the first of the queue, or nobody (None).

        Somebody does if, and only if, the level of somebody who runs is higher than that of
        `first`. It is one of those with the highest level of all that run; which of them is left
        open. running: in order of admission, perhaps empty.
        """
        ...


class EngineInterface(Protocol):
    """Many requests, one model: they join, share steps and leave, each as if it were alone.

    Made by `Engine(model, config=None, *, tokenizer=None, store=None, sampler=sample,
    clock=time.perf_counter, make_scheduler=Scheduler)`. Without a config it is EngineConfig();
    without a store, a SlotStore with a slot of `max_model_len` places for each of
    config.max_num_seqs requests, in the dtype and on the device of the model's weights. What is
    given, but for `make_scheduler`, is found again under the same names, beside those below.
    ConfigError if config.max_model_len is more than the model's `max_position`.

    `step` is called from one thread. `add_request` and `abort` may be called from any thread, at
    any moment: they only leave a note, which the next step reads.
    """

    store: KVStore
    scheduler: SchedulerInterface
    max_model_len: int  # config.max_model_len, or the model's max_position
    device: object  # of the model's weights

    @property
    def has_unfinished(self) -> bool:
        """Whether a further step has anything to do or to report."""
        ...

    def add_request(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams | None = None,
        *,
        priority: int = Priority.NORMAL,
        seed: int | None = None,
        request_id: int | None = None,
        deadline: float | None = None,
        output_token_ids: Sequence[int] = (),
    ) -> int:
        """Take a request on, or refuse it at once; its id, by which events and `abort` name it.

        Each of its n samples becomes a Request of its own. Without a request_id, the smallest
        number that was not given out yet and is not in use; whether one that a caller has chosen is
        given out after its request has ended is left open. deadline: seconds from now in which the
        answer should be complete. priority: any integer, lower first; the policy must read it
        (`check_urgency`, given), unless it is a member of Priority. output_token_ids: what another
        engine has generated of it (see EngineBase). A refused request leaves nothing behind;
        whether its number is given out is left open.

        Raises:
            RequestError: it can never be answered (`make_sequences`, or `refuse_unfit`).
            DuplicateRequestError: the id is in use by a request that has not ended.
        """
        ...

    def abort(self, request_id: int) -> bool:
        """Give a request up, wherever it is; False if there is none of that id (any more)."""
        ...

    def run(self) -> Iterator[EngineEvent]:
        """Step until nothing is left to do, and yield the events as they happen."""
        ...

    def step(self) -> list[EngineEvent]:
        """One round: notes, plan, model, draw, update; and what happened, in this order.

        Queued for each arrival. Aborted for each sample that was given up and has not ended, with
        its tokens and text; it is FINISHED. Preempted, then Admitted, as the plan says. What
        `update` gives. Last Stepped: `started` is the time before anything else, `running` is
        counted before `update`; whether its chunks include those that failed is left open. A
        Queued has the time of the arrival, the others any between `started` and Stepped's. Where
        the plan has no chunks, the model is not called, and there is no Stepped. After each Stepped
        the scheduler has observed its seconds.

        When `execute` or `draw` raises an Exception, each chunk is tried again alone, so that the
        error is the outcome of the chunk that causes it; a plan of one chunk need not be tried
        again. NotImplementedError (a task that is not written yet) goes through, and so does
        KeyboardInterrupt; what the step had to report is lost then.
        """
        ...

    def execute(self, plan: Plan) -> Float[Tensor, "N V"]:
        """Run the model over the plan's T tokens; logits of the N chunks that complete, in order.

        K and V of all tokens are written, but nothing is counted: that is for `update`. A plan, or
        any one of its chunks, may be executed again before that, with the same result. An engine
        of another kind may return something else, for its own `draw`.
        """
        ...

    def draw(self, plan: Plan, logits: Float[Tensor, "N V"]) -> list[Outcome]:
        """What comes of each chunk of the plan, in order: a token where it completes, else None.

        Calls `sampler(logits, rows)`, where rows[i] is `sequence.row` of the request whose logits
        are in row i; where no row is left, it need not be called. A row whose largest logit is not
        finite (NaN, inf, or -inf alone) gets a NonFiniteLogitsError and is not shown to the
        sampler; -inf beside others is a mask's. Draws change no state: drawn again, the tokens
        are the same.
        """
        ...

    def update(self, plan: Plan, outcomes: Sequence[Outcome]) -> list[EngineEvent]:
        """Commit and count what was computed, append the tokens, end what has ended; the events.

        outcomes: one a chunk, as `draw` gives them; the events come in the same order. A chunk
        whose outcome is an error is neither committed nor counted: its request fails (Failed). A
        token is for `sequence.append`, whose events are passed on, behind a Prefilled before the
        first token of sample 0, and of no other sample. Where `append` raises, this request fails,
        and the others go on; a Prefilled may stand before that Failed or not, and whether a
        NotImplementedError goes through here, too, is left open.
        """
        ...

    def check(self) -> None:
        """Raise InvariantError unless scheduler, store and requests agree; between two steps."""
