"""How long a request waits, and for what: TTFT, TPOT, inter-token latency, percentiles."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from nanovllm.generation.events import Event, TokenGenerated


@dataclass
class ManualClock:
    """A clock that moves only when told to: what makes times exact in tests.

    >>> clock = ManualClock()
    >>> clock.advance(0.25)
    >>> clock()
    0.25
    """

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


@dataclass
class Timeline:
    """The moments of one sample: when its request arrived and when each of its tokens came.

    Four properties, in seconds: `ttft`, time to first token, from arrival;
    `inter_token_latencies`, the list of gaps between tokens, one fewer than there are tokens;
    `tpot`, time per output token after the first, None with fewer than two tokens; `e2e`, from
    arrival to the last token.

    >>> line = Timeline(1.0, [3.0, 3.5, 4.5])
    >>> line.ttft, line.inter_token_latencies, line.tpot, line.e2e
    (2.0, [0.5, 1.0], 0.75, 3.5)
    """

    arrival: float
    token_times: list[float] = field(default_factory=list)

    ### BEGIN SOLUTION
    @property
    def ttft(self) -> float:
        return self.token_times[0] - self.arrival

    @property
    def inter_token_latencies(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.token_times)]

    @property
    def tpot(self) -> float | None:
        gaps = self.inter_token_latencies
        return sum(gaps) / len(gaps) if gaps else None

    @property
    def e2e(self) -> float:
        return self.token_times[-1] - self.arrival

    ### END SOLUTION


def percentile(values: Sequence[float], q: float) -> float:
    """The q-th percentile, 0 <= q <= 100, interpolated linearly between order statistics.

    Equals numpy's default. The values given are not changed.

    Raises:
        ValueError: no values, or q outside 0 to 100.

    >>> percentile([30.0, 10.0, 20.0, 40.0], 50)
    25.0
    """
    ### BEGIN SOLUTION
    if not values or not 0 <= q <= 100:
        raise ValueError(f"A percentile needs values and q in [0, 100], got q={q} of {values!r}.")
    ordered = sorted(values)
    rank = (len(ordered) - 1) * q / 100
    low, high = math.floor(rank), math.ceil(rank)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)
    ### END SOLUTION


def timelines(
    events: Iterable[Event], arrivals: dict[int, float]
) -> dict[tuple[int, int], Timeline]:
    """Sort a stream of events into one Timeline for each sample, by (request_id, index).

    >>> token = TokenGenerated(request_id=7, index=0, token_id=5, text="", time=2.5)
    >>> timelines([token], arrivals={7: 1.0})
    {(7, 0): Timeline(arrival=1.0, token_times=[2.5])}
    """
    found: dict[tuple[int, int], Timeline] = {}
    for event in events:
        if isinstance(event, TokenGenerated):
            key = event.request_id, event.index
            line = found.setdefault(key, Timeline(arrivals[event.request_id]))
            line.token_times.append(event.time)
    return found


@dataclass(frozen=True)
class LatencySummary:
    """What a load test reports, in seconds; TPOT is one number a sample, ITL one a gap."""

    ttft_p50: float
    ttft_p99: float
    tpot_p50: float
    tpot_p99: float
    itl_p50: float
    itl_p99: float
    tokens_per_second: float  # all tokens, from the first arrival to the last token


def summarize(lines: Sequence[Timeline]) -> LatencySummary:
    """Percentiles over samples; the gaps of all samples are pooled. Needs a sample of two tokens.

    A sample of one token has a TTFT, and counts in tokens_per_second, but not in TPOT or ITL.

    >>> summarize([Timeline(0.0, [1.0, 2.0, 4.0])]).tokens_per_second
    0.75
    """
    ### BEGIN SOLUTION
    ttfts = [line.ttft for line in lines]
    means = [line.tpot for line in lines if line.tpot is not None]
    gaps = [gap for line in lines for gap in line.inter_token_latencies]
    start = min(line.arrival for line in lines)
    end = max(line.token_times[-1] for line in lines)
    marks = [percentile(values, q) for values in (ttfts, means, gaps) for q in (50, 99)]
    return LatencySummary(*marks, sum(len(line.token_times) for line in lines) / (end - start))  # pyright: ignore[reportCallIssue]  # six marks
    ### END SOLUTION
