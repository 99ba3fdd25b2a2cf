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

    def __init__(self, *args, **kwargs):
        raise NotImplementedError("lab03 task 6: Timeline")


def percentile(values: Sequence[float], q: float) -> float:
    """The q-th percentile, 0 <= q <= 100, interpolated linearly between order statistics.

    Equals numpy's default. The values given are not changed.

    Raises:
        ValueError: no values, or q outside 0 to 100.

    >>> percentile([30.0, 10.0, 20.0, 40.0], 50)
    25.0
    """
    raise NotImplementedError("lab03 task 6: percentile")


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
    raise NotImplementedError("lab03 task 6: summarize")
