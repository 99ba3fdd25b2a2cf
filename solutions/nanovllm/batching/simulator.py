"""The engine's schedule without its model: a trace, a clock, and a price for every step."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from nanovllm.batching.events import Admitted, ChunkRun, EngineEvent, Preempted, Queued, Stepped
from nanovllm.batching.interface import SchedulerInterface
from nanovllm.batching.plan import Plan
from nanovllm.batching.request import Request, Status
from nanovllm.batching.simulated import SimulatedSequence
from nanovllm.batching.traces import Arrival
from nanovllm.generation.events import Event, TokenGenerated
from nanovllm.generation.latency import ManualClock, Timeline, percentile, timelines


@dataclass(frozen=True)
class StepCost:
    """The seconds of a step: a base, and more for each token computed and each place read."""

    base: float = 0.004
    per_token: float = 0.0002
    per_place: float = 0.000001

    def seconds(self, tokens: int, places: int) -> float:
        """The seconds of a step that computes `tokens` and reads `places` of the cache.

        >>> StepCost(base=1.0, per_token=0.5, per_place=0.25).seconds(tokens=4, places=8)
        5.0
        """
        return self.base + self.per_token * tokens + self.per_place * places

    def of_plan(self, plan: Plan) -> float:
        """The seconds of a plan: a chunk reads all places of its request up to its own end.

        A plan without chunks costs `base`: the machine looks round, and finds nothing to do.

        >>> from nanovllm.batching.plan import Chunk
        >>> plan = Plan((Chunk(None, 9, 1, 10), Chunk(None, 0, 4, 20)))
        >>> StepCost(base=1.0, per_token=0.5, per_place=0.25).of_plan(plan)
        7.0
        """
        ### BEGIN SOLUTION
        return self.seconds(plan.num_tokens, sum(chunk.end for chunk in plan.chunks))
        ### END SOLUTION


@dataclass(frozen=True)
class Run:
    """A trace replayed: every event, and when each request (its place in the trace) arrived."""

    events: list[EngineEvent]
    arrivals: dict[int, float]
    tokens_computed: int

    @property
    def timelines(self) -> list[Timeline]:
        """One line a request, in the order of the trace."""
        lines = timelines(cast(list[Event], self.events), self.arrivals)
        return [lines[request, 0] for request in sorted(self.arrivals)]


def simulate(trace: Sequence[Arrival], scheduler: SchedulerInterface, cost: StepCost) -> Run:
    """Replay a trace through a scheduler whose clock is a ManualClock at 0.

    A request is added when the clock has reached its arrival, whatever its place in the trace,
    and reports a Queued with that time; when the scheduler has no work, the clock jumps to the
    next one. A step, with chunks or without, moves the clock by its cost; then the store commits
    the plan, the scheduler updates, `_events` gives out tokens and ends requests, and the scheduler
    observes the step's seconds (without chunks: left open). The request in place i of the trace is
    number i; its limit is prompt + output - 1.

    Raises:
        RuntimeError: three steps in a row had no chunks, though there was work; whether the clock
            moves for the third is left open.
    """
    clock = scheduler.clock
    assert isinstance(clock, ManualClock), "give the scheduler clock=ManualClock()"
    requests = [_request(number, arrival) for number, arrival in enumerate(trace)]
    events: list[EngineEvent] = []
    computed = 0
    ### BEGIN SOLUTION
    coming = deque(sorted(requests, key=lambda request: request.arrival))
    idle = 0
    while coming or scheduler.has_work:
        if not scheduler.has_work:
            clock.now = max(clock.now, coming[0].arrival)
        while coming and coming[0].arrival <= clock.now:
            request = coming.popleft()
            scheduler.add(request)
            events.append(Queued(request.number, 0, request.arrival))
        started = clock.now
        plan = scheduler.schedule()
        clock.advance(cost.of_plan(plan))
        scheduler.store.commit(plan)
        scheduler.update(plan)
        events += _events(plan, scheduler, started)
        scheduler.observe(clock.now - started)
        computed += plan.num_tokens
        idle = 0 if plan.chunks else idle + 1
        if idle == 3:
            raise RuntimeError("The scheduler has work, but planned nothing three times in a row.")
    ### END SOLUTION
    return Run(events, {request.number: request.arrival for request in requests}, computed)


def _events(plan: Plan, scheduler: SchedulerInterface, started: float) -> list[EngineEvent]:
    """Generate the tokens of a step that has been computed, end who is done, and report it all."""
    now = scheduler.clock()
    events: list[EngineEvent] = [Preempted(r.number, 0, started) for r in plan.preempted]
    events += [Admitted(r.number, 0, started) for r in plan.admitted]
    running = len(scheduler.running)
    for chunk in plan.chunks:
        if chunk.completes:
            chunk.request.sequence.append()
            events.append(TokenGenerated(chunk.request.number, 0, 0, "", now))
            if chunk.request.sequence.finished:
                scheduler.end(chunk.request, Status.FINISHED)
    chunks = tuple(ChunkRun(c.request.number, 0, c.start, c.length) for c in plan.chunks)
    waiting, free = len(scheduler.waiting), scheduler.store.free_tokens
    step = Stepped(chunks, running, waiting, plan.budget, free, started, now)
    return [*events, step]


def _request(number: int, arrival: Arrival) -> Request:
    sequence = SimulatedSequence(number, arrival.prompt, arrival.output)
    limit = arrival.prompt + arrival.output - 1
    return Request(
        number, sequence, arrival.time, limit, arrival.priority, deadline=arrival.deadline
    )


def simulate_static(trace: Sequence[Arrival], max_num_seqs: int, cost: StepCost) -> Run:
    """Replay a trace through static batches, lab 03's way.

    The next batch are the first `max_num_seqs` of those that have arrived, by arrival, ties by
    place in the trace; with none, the clock jumps to the next arrival. Its N prompts are padded to
    the longest, W: one step of N*W tokens that reads N*W places. Each further step computes N
    tokens, ended rows included, and reads W + 1, W + 2, ... places a row, until the longest output
    is there. A request's tokens come at the ends of the first `output` steps. The events are
    TokenGenerated only.
    """
    events: list[EngineEvent] = []
    computed = 0
    ### BEGIN SOLUTION
    coming = deque(sorted(enumerate(trace), key=lambda pair: pair[1].time))
    now = 0.0
    while coming:
        now = max(now, coming[0][1].time)
        batch: list[tuple[int, Arrival]] = []
        while coming and coming[0][1].time <= now and len(batch) < max_num_seqs:
            batch.append(coming.popleft())
        rows = len(batch)
        width = max(arrival.prompt for _, arrival in batch)
        for step in range(max(arrival.output for _, arrival in batch)):
            tokens = rows * width if step == 0 else rows
            now += cost.seconds(tokens, rows * (width + step))
            computed += tokens
            events += [TokenGenerated(i, 0, 0, "", now) for i, a in batch if step < a.output]
    ### END SOLUTION
    return Run(events, {i: arrival.time for i, arrival in enumerate(trace)}, computed)


def jain_fairness(values: Sequence[float]) -> float:
    """Jain's index: (sum x)^2 / (n * sum x^2), from 1/n (one gets all) to 1 (all get the same).

    Values that are all 0 are equal: 1. Raises ValueError without values.
    Source: Jain, Chiu and Hawe, "A quantitative measure of fairness", 1984.

    >>> jain_fairness([2.0, 2.0]), jain_fairness([4.0, 0.0, 0.0, 0.0])
    (1.0, 0.25)
    """
    ### BEGIN SOLUTION
    if not values:
        raise ValueError("Fairness needs at least one value.")
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0
    ### END SOLUTION


@dataclass(frozen=True)
class Report:
    """What a run was like; times in seconds."""

    throughput: float  # tokens generated a second, from the first arrival to the last token
    ttft_p50: float
    ttft_p99: float
    latency_p50: float
    latency_p99: float
    fairness: float  # Jain's index of each request's tokens a second, waiting included
    longest_wait: float  # for a first token
    preemptions: int
    tokens_computed: int


def report(run: Run) -> Report:
    """Sum a run up."""
    lines = run.timelines
    ttfts, latencies = [line.ttft for line in lines], [line.e2e for line in lines]
    rates = [len(line.token_times) / line.e2e for line in lines]
    end = max(line.token_times[-1] for line in lines)
    tokens = sum(len(line.token_times) for line in lines)
    return Report(
        throughput=tokens / (end - min(run.arrivals.values())),
        ttft_p50=percentile(ttfts, 50),
        ttft_p99=percentile(ttfts, 99),
        latency_p50=percentile(latencies, 50),
        latency_p99=percentile(latencies, 99),
        fairness=jain_fairness(rates),
        longest_wait=max(ttfts),
        preemptions=sum(isinstance(event, Preempted) for event in run.events),
        tokens_computed=run.tokens_computed,
    )
