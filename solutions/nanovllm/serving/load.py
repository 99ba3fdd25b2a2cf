"""Load on a server: when requests are sent, and what came of them.

Source: vllm/benchmarks/serve.py of vLLM 0.32; Schroeder et al., "Open versus closed" (NSDI 2006).
"""

import asyncio
import itertools
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from nanovllm.generation.latency import Timeline

Send = Callable[[int, float], Awaitable["Record"]]  # (number of the request, when it was due)


@dataclass(frozen=True)
class Record:
    """One request as its client saw it; all times on the client's one clock, in seconds.

    due: when it was meant to be sent. A client that falls behind sends later, and its user waits
    from `due` on all the same. token_times: one for each token; error: None if it was answered.
    """

    due: float
    token_times: tuple[float, ...] = ()
    ended: float = 0.0
    prompt_tokens: int = 0
    error: str | None = None

    @property
    def timeline(self) -> Timeline:
        """Lab 03's view of it: TTFT, TPOT, gaps, latency."""
        return Timeline(self.due, list(self.token_times))


def arrival_times(
    rate: float, count: int, *, burstiness: float = 1.0, seed: int = 0
) -> list[float]:
    """When to send each of `count` requests: seconds from the start, at `rate` a second on average.

    The gap before every request, the first included, is drawn from a gamma distribution with mean
    1 / rate and shape `burstiness`: 1 is a Poisson process, less comes in bursts, more is
    more even. An infinite rate sends all at 0. The same arguments give the same times, other seeds
    others; random numbers that the rest of the program draws are left alone.

    Raises:
        ValueError: rate or burstiness is not above 0.

    >>> arrival_times(math.inf, 3)
    [0.0, 0.0, 0.0]
    """
    if not (rate > 0 and burstiness > 0):
        raise ValueError(f"rate and burstiness must be above 0, got {rate} and {burstiness}.")
    ### BEGIN SOLUTION
    draws = random.Random(seed)
    if math.isinf(rate):
        return [0.0] * count
    scale = 1 / (rate * burstiness)
    return list(accumulate(draws.gammavariate(burstiness, scale) for _ in range(count)))
    ### END SOLUTION


async def open_loop(send: Send, times: Sequence[float]) -> list[Record]:
    """Send request i at times[i], whatever has become of those before; the records, in order.

    Times count from the call, on the clock of the event loop, which `due` is on too: the moment
    for which the request was planned, also where it is sent later.
    """
    loop = asyncio.get_running_loop()
    start = loop.time()

    async def one(number: int) -> Record:
        due = start + times[number]
        await asyncio.sleep(due - loop.time())
        return await send(number, due)

    return list(await asyncio.gather(*(one(number) for number in range(len(times)))))


async def closed_loop(
    send: Send, count: int | None, concurrency: int, seconds: float | None = None
) -> list[Record]:
    """Keep `concurrency` requests under way until `count` were sent; the records, in order.

    With a count of None they are sent for so many seconds of the loop's clock.

    Each of so many users sends the next request as soon as the answer to their last one is
    complete: that moment is its `due`. Requests are numbered in the order in which they are sent.
    """
    loop = asyncio.get_running_loop()
    records: dict[int, Record] = {}
    numbers = itertools.count() if count is None else iter(range(count))
    end = math.inf if seconds is None else loop.time() + seconds

    async def user() -> None:
        while loop.time() < end and (number := next(numbers, None)) is not None:
            records[number] = await send(number, loop.time())

    await asyncio.gather(*(user() for _ in range(concurrency)))
    return [records[number] for number in sorted(records)]


@dataclass(frozen=True)
class Slo:
    """What an answer must keep to be a good one, in seconds; None is no limit."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    @classmethod
    def parse(cls, text: str) -> "Slo":
        """Read `ttft:200,tpot:50,e2e:2000`, in milliseconds.

        >>> Slo.parse("ttft:200,e2e:2000")
        Slo(ttft=0.2, tpot=None, e2e=2.0)
        """
        limits = {}
        for part in text.split(","):
            name, _, value = part.strip().partition(":")
            if name not in ("ttft", "tpot", "e2e"):
                raise ValueError(f"An SLO is of ttft, tpot or e2e, as in ttft:200; got {part!r}.")
            limits[name] = float(value) / 1000
        return cls(**limits)

    def met(self, record: Record) -> bool:
        """Whether the answer was complete, not empty, and within every limit (equal counts).

        TTFT and e2e count from `due`, and e2e ends with the last token. An answer of one token has
        no TPOT, and keeps any limit of it.

        >>> Slo(ttft=0.5).met(Record(due=1.0, token_times=(1.5, 9.0), ended=9.0))
        True
        """
        ### BEGIN SOLUTION
        if record.error is not None or not record.token_times:
            return False
        line = record.timeline
        pairs = [(self.ttft, line.ttft), (self.tpot, line.tpot), (self.e2e, line.e2e)]
        return all(limit is None or value is None or value <= limit for limit, value in pairs)
        ### END SOLUTION


def goodput(records: Sequence[Record], slo: Slo) -> float:
    """Good answers a second: those that met the SLO, over the time of the whole run.

    The run lasts from the earliest `due` to the latest `ended`, failures included, in whatever
    order they are; 0 without records, and for a run without duration.

    >>> records = [Record(0.0, (1.0,), 1.0), Record(1.0, (4.0,), 4.0)]
    >>> goodput(records, Slo(ttft=2.0))
    0.25
    """
    ### BEGIN SOLUTION
    if not records:
        return 0.0
    seconds = max(record.ended for record in records) - min(record.due for record in records)
    good = sum(slo.met(record) for record in records)
    return good / seconds if seconds > 0 else 0.0
    ### END SOLUTION
