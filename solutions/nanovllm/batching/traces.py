"""Made-up arrivals to replay: steady, in bursts, and with a heavy tail of sizes."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from nanovllm.batching.request import Priority


@dataclass(frozen=True)
class Arrival:
    """A request of a trace: when it comes, how long its prompt is, how much it will generate.

    deadline: when its answer should be complete, on the same clock as `time`.
    """

    time: float
    prompt: int
    output: int
    priority: int = Priority.NORMAL
    deadline: float = math.inf


def steady(seed: int, count: int, rate: float) -> list[Arrival]:
    """Poisson arrivals at `rate` a second; prompts of 16 to 128 and outputs of 8 to 64 tokens."""
    draw = random.Random(seed)
    return [
        Arrival(time, draw.randint(16, 128), draw.randint(8, 64), _priority(draw))
        for time in _moments(draw, count, rate)
    ]


def bursty(seed: int, count: int, rate: float, burst: int = 16) -> list[Arrival]:
    """The same mean rate and sizes, but `burst` requests at a time arrive together."""
    draw = random.Random(seed)
    times = list(_moments(draw, math.ceil(count / burst), rate / burst))
    return [
        Arrival(times[i // burst], draw.randint(16, 128), draw.randint(8, 64), _priority(draw))
        for i in range(count)
    ]


def heavy_tailed(seed: int, count: int, rate: float, longest: int = 1024) -> list[Arrival]:
    """Poisson arrivals; most requests are small, a few are very large (Pareto sizes, cut off)."""
    draw = random.Random(seed)
    return [
        Arrival(time, _pareto(draw, 16, longest), _pareto(draw, 8, longest // 2), _priority(draw))
        for time in _moments(draw, count, rate)
    ]


def _moments(draw: random.Random, count: int, rate: float) -> Iterator[float]:
    now = 0.0
    for _ in range(count):
        now += draw.expovariate(rate)
        yield now


def _pareto(draw: random.Random, least: int, most: int) -> int:
    return min(most, int(least * draw.paretovariate(1.2)))


def _priority(draw: random.Random) -> Priority:
    return draw.choices(list(Priority), weights=(1, 3, 2))[0]
