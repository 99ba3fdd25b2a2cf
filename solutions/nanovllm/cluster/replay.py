"""Instances in virtual time: a strategy says what each computes next, a price how long it takes
(given)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from nanovllm.batching.simulator import StepCost
from nanovllm.cluster.errors import ClusterError


@dataclass(frozen=True)
class Job:
    """A request: when it arrives, its prompt's tokens, and how many it generates."""

    arrival: float
    prompt: int
    output: int


@dataclass(eq=False)
class Progress:
    """A job under way. ready: when an instance may begin with it. computed: tokens of its prompt
    whose K and V are there. times: when each of its tokens came; the first, with the prompt's end.
    """

    number: int
    job: Job
    ready: float
    computed: int = 0
    times: list[float] = field(default_factory=list)

    @property
    def left(self) -> int:
        """Tokens of its prompt that are still to be computed."""
        return self.job.prompt - self.computed


@dataclass(frozen=True)
class Work:
    """One step: of some prompts so many tokens, and one more token for each of the others."""

    prompts: tuple[tuple[Progress, int], ...] = ()
    decodes: tuple[Progress, ...] = ()


@dataclass(frozen=True)
class Limits:
    """Requests that an instance has in hand at most, and tokens that a chunked step computes."""

    max_num_seqs: int = 8
    max_num_batched_tokens: int = 256


class Strategy(Protocol):
    """What an instance computes next.

    waiting: those that have arrived and whose prompt is not computed to its end, in the order in
    which they became ready; running: those whose prompt is, and that have tokens to come, in the
    same order. One of the two is not empty, and neither may the work be.
    """

    def __call__(
        self, waiting: Sequence[Progress], running: Sequence[Progress], limits: Limits
    ) -> Work: ...


@dataclass(frozen=True)
class Span:
    """What a lane did from start to end: "prefill", "decode", "mixed" or "transfer"."""

    lane: str
    kind: str
    jobs: tuple[int, ...]
    start: float
    end: float


@dataclass
class _Instance:
    lane: str
    queue: list[Progress]  # in order; shared by all instances if they have one pool
    now: float = 0.0
    begun: list[Progress] = field(default_factory=list)

    def next_step(self) -> float:
        """When it can begin its next step; inf if nothing will come."""
        return max(self.now, 0.0 if self.begun else min((p.ready for p in self.queue), default=inf))


def replay(
    jobs: Iterable[Progress],
    strategy: Strategy,
    cost: StepCost,
    limits: Limits,
    *,
    lanes: Sequence[str] = ("0",),
    one_pool: bool = False,
) -> list[Span]:
    """Compute all jobs to their ends; their `times` say when. One instance for each lane.

    one_pool: an instance takes from one queue of all jobs whatever it begins next; else each job
    belongs to the next instance in turn. A job stays where it was begun. Raises ClusterError for
    work that cannot be done.
    """
    ordered = sorted(jobs, key=lambda progress: (progress.ready, progress.number))
    count, spans = len(lanes), []
    instances = [
        _Instance(lane, ordered if one_pool else ordered[place::count])
        for place, lane in enumerate(lanes)
    ]
    while True:
        instance = min(instances, key=_Instance.next_step)
        start = instance.next_step()
        if start == inf:
            return spans
        here = instance.begun + [p for p in instance.queue if p.ready <= start]
        here.sort(key=lambda progress: (progress.ready, progress.number))
        waiting, running = [p for p in here if p.left], [p for p in here if not p.left]
        work = strategy(waiting, running, limits)
        _refuse(work, waiting, running)
        spans.append(_step(instance, work, start, cost))


def _refuse(work: Work, waiting: Sequence[Progress], running: Sequence[Progress]) -> None:
    prompts = [progress for progress, _ in work.prompts]
    known = set(prompts) <= set(waiting) and set(work.decodes) <= set(running)
    named = [*prompts, *work.decodes]
    if not (known and named and len(set(named)) == len(named)):
        raise ClusterError("A step is of at least one job that is here, and of each once.")
    if any(not 0 < tokens <= progress.left for progress, tokens in work.prompts):
        raise ClusterError(
            "A step computes 1 token of a prompt at least, and what is left at most."
        )


def _step(instance: _Instance, work: Work, start: float, cost: StepCost) -> Span:
    for progress, tokens in work.prompts:
        progress.computed += tokens
    named = [*(progress for progress, _ in work.prompts), *work.decodes]
    tokens = sum(tokens for _, tokens in work.prompts) + len(work.decodes)
    places = sum(progress.computed + len(progress.times) for progress in named)
    instance.now = start + cost.seconds(tokens, places)
    for progress in named:
        if progress not in instance.begun:
            instance.queue.remove(progress)
            instance.begun.append(progress)
        if not progress.left:
            progress.times.append(instance.now)
        if len(progress.times) >= progress.job.output:
            instance.begun.remove(progress)
    kind = "mixed" if work.prompts and work.decodes else "prefill" if work.prompts else "decode"
    return Span(instance.lane, kind, tuple(p.number for p in named), start, instance.now)
