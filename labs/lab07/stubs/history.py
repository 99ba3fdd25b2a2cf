"""What the server remembers of the last hour: rows of ten seconds, and where requests' time went
(given)."""

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from nanovllm.batching.events import (
    Aborted,
    Admitted,
    EngineEvent,
    Failed,
    Preempted,
    Queued,
    Stepped,
)  # fmt: skip
from nanovllm.generation.events import Finished, Prefilled, TokenGenerated
from nanovllm.generation.latency import percentile

SECONDS, ROWS = 10.0, 360  # of a row; an hour of them
ENDED = 200  # samples that are remembered after their end
VALUES = 200  # of a row's latencies that are kept: of more, a sample drawn evenly
PERCENTS = (50, 95, 99)


@dataclass
class Latencies:
    """At most `VALUES` of the values that it was given, each with the same chance."""

    count: int = 0
    kept: list[float] = field(default_factory=list)

    def add(self, value: float, draw: random.Random) -> None:
        """Take one in."""
        self.count += 1
        if len(self.kept) < VALUES:
            self.kept.append(value)
        elif (place := draw.randrange(self.count)) < VALUES:
            self.kept[place] = value


@dataclass
class Row:
    """What happened in ten seconds. running, waiting and usage are the highest that were seen."""

    start: float
    tokens: int = 0
    finished: int = 0
    failed: int = 0  # aborted ones too
    preempted: int = 0
    running: int = 0
    waiting: int = 0
    usage: float = 0.0
    ttft: Latencies = field(default_factory=Latencies)
    tpot: Latencies = field(default_factory=Latencies)


@dataclass
class Sample:
    """One sample's time. phases: its parts and when each began; they end where the next begins."""

    name: str
    index: int
    arrival: float
    phases: list[tuple[str, float]]
    end: float | None = None
    state: str = "open"
    first: float | None = None  # when its first token came
    last: float = 0.0
    tokens: int = 0

    def begin(self, phase: str, when: float) -> None:
        """From here on it is in another phase, or still in this one."""
        if self.phases[-1][0] != phase:
            self.phases.append((phase, when))


class History:
    """An observer of the engine's events. name_of: the public id of an engine's request id."""

    def __init__(self, clock: Callable[[], float], name_of: Callable[[int], str]) -> None:
        self.clock, self.name_of = clock, name_of
        self.rows: deque[Row] = deque(maxlen=ROWS)
        self.open: dict[tuple[int, int], Sample] = {}
        self.ended: deque[Sample] = deque(maxlen=ENDED)
        self._draw = random.Random(0)

    def observe(self, events: Sequence[EngineEvent], usage: float) -> None:
        """Take in the events of a step."""
        row = self._row(self.clock())
        row.usage = max(row.usage, usage)
        for event in events:
            if isinstance(event, Stepped):
                row.running = max(row.running, event.running)
                row.waiting = max(row.waiting, event.waiting)
            elif isinstance(event, Queued):
                first = [("queued", event.time)]
                sample = Sample(self.name_of(event.request_id), event.index, event.time, first)
                self.open[event.request_id, event.index] = sample
            elif isinstance(event, Prefilled):
                pass  # its first token comes at once
            elif sample := self.open.get((event.request_id, event.index)):
                if isinstance(event, Finished | Aborted | Failed):
                    del self.open[event.request_id, event.index]
                    self._ends(event, sample, row)
                else:
                    self._goes_on(event, sample, row)

    def _row(self, now: float) -> Row:
        start = now // SECONDS * SECONDS
        if not self.rows or self.rows[-1].start < start:
            self.rows.append(Row(start))
        return self.rows[-1]

    def _goes_on(
        self, event: TokenGenerated | Admitted | Preempted, sample: Sample, row: Row
    ) -> None:
        if isinstance(event, TokenGenerated):
            row.tokens += 1
            sample.tokens += 1
            sample.last = event.time
            sample.begin("decode", event.time)
            if sample.first is None:
                sample.first = event.time
                row.ttft.add(event.time - sample.arrival, self._draw)
        elif isinstance(event, Preempted):
            row.preempted += 1
            sample.begin("preempted", event.time)
        else:
            sample.begin("prefill", event.time)

    def _ends(self, event: Finished | Aborted | Failed, sample: Sample, row: Row) -> None:
        sample.end, sample.state = event.time, type(event).__name__.lower()
        self.ended.append(sample)
        if not isinstance(event, Finished):
            row.failed += 1
            return
        row.finished += 1
        if sample.first is not None and sample.tokens > 1:
            row.tpot.add((sample.last - sample.first) / (sample.tokens - 1), self._draw)

    def recent(self, window: float) -> dict[str, Any]:
        """The rows of the last `window` seconds, their percentiles, and the samples since then.

        rows, oldest first, each ten seconds: how long ago it began, its counts, highest values,
        and percentiles of TTFT and TPOT, None without values. ttft and tpot: percentiles over all.
        requests, newest first, open ones too: a phase is [its name, seconds from arrival, its
        seconds], and their sum is the time from arrival to the end, or to now.
        """
        now = self.clock()
        rows = [row for row in list(self.rows) if now - row.start < window + SECONDS]
        samples = [*self.open.values(), *self.ended]
        samples = [s for s in samples if s.end is None or now - s.end <= window]
        samples.sort(key=lambda sample: -sample.arrival)
        return {
            "seconds": SECONDS,
            "rows": [_row(row, now) for row in rows],
            "ttft": _percentiles(row.ttft for row in rows),
            "tpot": _percentiles(row.tpot for row in rows),
            "requests": [_sample(sample, now) for sample in samples],
        }


def _percentiles(found: Iterable[Latencies]) -> dict[str, Any]:
    every = list(found)
    values = [value for each in every for value in each.kept]
    told = {f"p{p}": percentile(values, p) if values else None for p in PERCENTS}
    return told | {"count": sum(each.count for each in every)}


def _row(row: Row, now: float) -> dict[str, Any]:
    names = ("tokens", "finished", "failed", "preempted", "running", "waiting", "usage")
    told = {name: getattr(row, name) for name in names} | {"ago": now - row.start}
    return told | {"ttft": _percentiles([row.ttft]), "tpot": _percentiles([row.tpot])}


def _sample(sample: Sample, now: float) -> dict[str, Any]:
    end = now if sample.end is None else sample.end
    ends = [*(when for _, when in sample.phases[1:]), end]
    return {
        "id": sample.name,
        "index": sample.index,
        "state": sample.state,
        "ago": now - sample.arrival,
        "tokens": sample.tokens,
        "phases": [
            [name, when - sample.arrival, until - when]
            for (name, when), until in zip(sample.phases, ends, strict=True)
        ],
    }
