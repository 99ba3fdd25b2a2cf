"""What has happened lately: the curves of a dashboard (given)."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from nanovllm.batching.budget_counts import CountedBudget
from nanovllm.batching.events import (
    Aborted,
    EngineEvent,
    Failed,
    Preempted,
    Queued,
    Stepped,
)
from nanovllm.generation.events import Finished, TokenGenerated
from nanovllm.generation.latency import Timeline, percentile

WINDOW = 30.0  # seconds that rates and percentiles look back
POINTS = 300  # of each curve that is kept


class Monitor:
    """Keeps a window of what the engine reported; its clock is the engine's."""

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        window: float = WINDOW,
        budget: CountedBudget | None = None,
    ) -> None:
        self.clock = clock
        self.budget = budget
        self.limits: deque[tuple[float, int]] = deque(maxlen=POINTS)  # when, the budget's limit
        self.window = window
        self.started = clock()
        self.lines: dict[tuple[int, int], Timeline] = {}  # samples that have not ended
        self.steps: deque[Stepped] = deque(maxlen=POINTS)
        self.tokens: deque[tuple[float, float]] = deque()  # when, how many
        self.ttfts: deque[tuple[float, float]] = deque(maxlen=POINTS)  # when, seconds
        self.tpots: deque[tuple[float, float]] = deque(maxlen=POINTS)
        self.totals: dict[str, int] = dict.fromkeys(
            ("requests", "finished", "aborted", "failed", "preemptions", "tokens"), 0
        )

    def observe(self, events: Sequence[EngineEvent], usage: float) -> None:
        """Take in the events of a step."""
        for event in events:
            self._event(event)
        self._trim(self.clock())

    def _event(self, event: EngineEvent) -> None:
        """Count the event in `totals`, and keep what the curves need.

        A sample's Timeline lives from its Queued (arrival) to its end, preempted or not. Its first
        token gives a point of `ttfts`; a Finished gives one of `tpots`, unless it has but one
        token. Points are (time of the event, seconds).
        """
        if isinstance(event, TokenGenerated):
            self.totals["tokens"] += 1
            self.tokens.append((event.time, 1))
            line = self.lines.get((event.request_id, event.index))
            if line is not None:
                line.token_times.append(event.time)
                if len(line.token_times) == 1:
                    self.ttfts.append((event.time, line.ttft))
        elif isinstance(event, Queued):
            self.totals["requests"] += 1
            self.lines[event.request_id, event.index] = Timeline(event.time)
        elif isinstance(event, Preempted):
            self.totals["preemptions"] += 1
        elif isinstance(event, Stepped):
            self.steps.append(event)
            if self.budget is not None:
                self.limits.append((event.time, self.budget.limit))
        elif isinstance(event, Finished | Aborted | Failed):
            self.totals[type(event).__name__.lower()] += 1
            line = self.lines.pop((event.request_id, event.index), None)
            if isinstance(event, Finished) and line is not None and line.tpot is not None:
                self.tpots.append((event.time, line.tpot))

    def _trim(self, now: float) -> None:
        """Forget tokens, ttfts and tpots older than the window; what is exactly as old stays.

        The steps are bounded by their number, not by the window.
        """
        for points in (self.tokens, self.ttfts, self.tpots):
            while points and now - points[0][0] > self.window:
                points.popleft()

    def recent(self) -> dict[str, Any]:
        """Rates, latencies and the newest steps, all over the window up to now.

        guesses: how many the steps made at each place of a run, and how many of them stood.
        tokens_per_second counts over the window, or over the time since the start if that is
        shorter. A point of a curve is [seconds ago, seconds]; percentiles are None without points.
        budget: of an adaptive token budget, its range, its decisions since the start, and its limit
        as points; else None.
        """
        now = self.clock()
        self._trim(now)
        span = min(self.window, max(now - self.started, 1e-9))
        return {
            "uptime": now - self.started,
            "totals": dict(self.totals),
            "tokens_per_second": sum(count for _, count in self.tokens) / span,
            "ttft": _curve(self.ttfts, now),
            "tpot": _curve(self.tpots, now),
            "batch": _batch(self.steps[-1], now) if self.steps else None,
            "steps": [_step(step, now) for step in self.steps],
            "guesses": _guesses(self.steps),
            "budget": None if self.budget is None else _budget(self.budget, self.limits, now),
        }


def _curve(points: deque[tuple[float, float]], now: float) -> dict[str, Any]:
    values = [seconds for _, seconds in points]
    return {
        "p50": percentile(values, 50) if values else None,
        "p99": percentile(values, 99) if values else None,
        "points": [[now - when, seconds] for when, seconds in points],
    }


def _budget(
    budget: CountedBudget, limits: Iterable[tuple[float, int]], now: float
) -> dict[str, Any]:
    return {
        "limit": budget.limit,
        "highest": budget.highest,
        "decisions": dict(budget.decisions),
        "points": [[now - when, limit] for when, limit in limits],
    }


def _guesses(steps: Iterable[Stepped]) -> list[list[int]]:
    """Those made and those that stood, for each place.

    >>> from nanovllm.batching.events import ChunkRun
    >>> _guesses([Stepped((ChunkRun(0, 0, 8, 4, drafts=3, accepted=1),), 1, 0, 9, 9, 0.0, 1.0)])
    [[1, 1], [1, 0], [1, 0]]
    """
    runs = [run for step in steps for run in step.chunks if run.drafts]
    places = range(max((run.drafts for run in runs), default=0))
    return [[sum(r.drafts > p for r in runs), sum(r.accepted > p for r in runs)] for p in places]


def _step(step: Stepped, now: float) -> dict[str, Any]:
    """One step: a chunk of one token and its guesses counts as decode, any other as prefill."""
    decode = sum(run.length for run in step.chunks if run.length - run.drafts == 1)
    total = sum(chunk.length for chunk in step.chunks)
    return {
        "ago": now - step.time,
        "seconds": step.time - step.started,
        "prefill_tokens": total - decode,
        "decode_tokens": decode,
        "running": step.running,
        "waiting": step.waiting,
        "budget": step.budget,
        "free_tokens": step.free_tokens,
    }


def _batch(step: Stepped, now: float) -> dict[str, Any]:
    chunks = [[c.request_id, c.index, c.start, c.length] for c in step.chunks]
    return _step(step, now) | {"chunks": chunks}
