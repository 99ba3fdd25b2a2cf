"""What the engine asks of a scheduler: the whole of it, whatever data the scheduler keeps (given).

`Engine(model, make_scheduler=...)` takes any class with this interface, or a function that wraps
one. The store's interface is in store.py, a plan's in plan.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Protocol

from nanovllm.batching.request import Request, Status

if TYPE_CHECKING:
    from nanovllm.batching.plan import Plan


class SchedulerInterface(Protocol):
    """Decides what each step computes: add, schedule, update, end.

    Made by `make_scheduler(store, policy, budget, max_num_seqs=, max_chunk=, clock=)`, the
    arguments of lab 04's Scheduler. It keeps no tensors, and reads the time from its clock alone.

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

    @property
    def running(self) -> Collection[Request]:
        """The batch, in the order of admission. Read it; only the scheduler changes it."""

    @property
    def waiting(self) -> Collection[Request]:
        """The queue, in any order: new requests, and those that were preempted."""

    @property
    def has_work(self) -> bool:
        """Whether anybody waits or runs."""

    def queue(self) -> list[Request]:
        """Those that wait, in the order in which they would be admitted now: a new list."""

    def refuse_unfit(self, request: Request) -> None:
        """Raise RequestTooLargeError for a request that the store could not hold even alone."""

    def add(self, request: Request) -> None:
        """Queue a new request. Raises RequestTooLargeError as `refuse_unfit`."""

    def schedule(self) -> Plan:
        """The plan of the next step: room is reserved in the store for every chunk.

        A plan without chunks says that nobody can run now.
        """

    def update(self, plan: Plan) -> None:
        """These chunks have been computed: count their tokens.

        `plan` may have fewer chunks than `schedule` gave: those that failed are left out.
        """

    def observe(self, seconds: float) -> None:
        """A step took so long; called once after each step that computed something."""

    def end(self, request: Request, status: Status) -> None:
        """Let go of a request, wherever it is, and of its room; FINISHED or FAILED."""

    def check(self) -> None:
        """Raise InvariantError unless its own data agree with themselves and with the store."""


SchedulerMaker = Callable[..., SchedulerInterface]
