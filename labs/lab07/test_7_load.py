"""Task 7: the load test's arithmetic."""

import math
import random

import numpy as np
import pytest

from grader import expect
from nanovllm.serving.load import Record, Slo, arrival_times, goodput


@pytest.mark.check(task=7, points=2, title="Arrivals at the asked rate, in order")
def test_arrivals(rng):
    rate = float(rng.choice([0.5, 4.0, 20.0]))
    times = np.array(arrival_times(rate, 4000, seed=int(rng.integers(1000))))
    gaps = np.diff(times, prepend=0.0)
    expect.that(
        0.9 < gaps.mean() * rate < 1.1,
        "4000 gaps have a mean of 1 / rate",
        observed=float(f"{gaps.mean() * rate:.1g}"),
        call=f"arrival_times({rate}, 4000): mean gap times rate",
    )
    expect(
        [len(times), bool((gaps > 0).all()), arrival_times(math.inf, 3), arrival_times(rate, 0)],
        [4000, True, [0.0, 0.0, 0.0], []],
        call="number of times; each later than the one before, the first later than 0; an infinite "
        "rate; none",
        cause="users do not agree to start when the test does",
    )


@pytest.mark.check(task=7, points=1, title="Burstiness is the shape; the seed decides")
def test_burstiness(rng):
    seed = int(rng.integers(1000))
    spread, means = [], []
    for shape in (0.25, 1.0, 4.0):
        times = np.array(arrival_times(2.0, 6000, burstiness=shape, seed=seed))
        gaps = np.diff(times, prepend=0.0)
        spread.append(float(gaps.std() / gaps.mean()))
        means.append(round(float(gaps.mean()) * 4) / 4)
    rounded = [round(value * 2) / 2 for value in spread]
    expect(
        rounded,
        [2.0, 1.0, 0.5],
        call="standard deviation over mean of the gaps for burstiness 0.25, 1 and 4, to halves",
        cause="1 / sqrt(burstiness); a Poisson process has 1",
    )
    expect(
        means,
        [0.5, 0.5, 0.5],
        call="mean gap at 2 requests a second for the same, to quarters of a second",
        cause="burstiness does not change the rate",
    )
    again = [arrival_times(2.0, 5, seed=seed) == arrival_times(2.0, 5, seed=s)
             for s in (seed, seed + 1)]  # fmt: skip
    expect(again, [True, False], call="equal times for the same seed, and for another")
    drawn = []
    for _ in range(2):
        random.seed(seed)
        np.random.seed(seed)
        if drawn:
            arrival_times(2.0, 5, seed=seed + 1)
        drawn.append([random.random(), np.random.random()])
    expect(
        drawn[1],
        drawn[0],
        call="random.random() and np.random.random() after their seeds and arrival_times",
        cause="the draws come from a generator of their own; the program's is others'",
    )


@pytest.mark.check(task=7, points=1, title="An SLO is met by whole answers within every limit")
def test_slo():
    slo = Slo(ttft=1.0, tpot=0.5, e2e=3.0)
    records = {
        "just within": Record(2.0, (3.0, 3.5, 4.0), 4.0),
        "first token late": Record(2.0, (3.25, 3.5), 3.5),
        "tokens slow": Record(2.0, (2.5, 3.25), 3.25),
        "too long in all": Record(2.0, (2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 5.25), 5.25),
        "one token": Record(2.0, (3.0,), 3.0),
        "closed late": Record(2.0, (2.5, 3.0), 9.0),
        "failed half-way": Record(2.0, (2.5, 3.0), 3.0, error="503"),
        "empty": Record(2.0, (), 2.5),
    }
    expect(
        {name: slo.met(record) for name, record in records.items()},
        dict.fromkeys(records, False)
        | dict.fromkeys(("just within", "one token", "closed late"), True),
        call="Slo(ttft=1, tpot=0.5, e2e=3).met(...) of requests due at 2; the one that was closed "
        "late had its last token at 3 and ended at 9",
    )
    expect(
        [Slo().met(records["too long in all"]), Slo().met(records["failed half-way"])],
        [True, False],
        call="an SLO without limits, for a slow answer and for a failed one",
    )


@pytest.mark.check(task=7, points=2, title="Goodput: good answers over the time of the whole run")
def test_goodput(rng):
    shift = float(rng.integers(5, 50))
    records = [
        Record(shift + 4.25, (shift + 5.0,), shift + 5.0),
        Record(shift + 6.0, (), shift + 8.5, error="timeout"),
        Record(shift + 0.5, (shift + 1.0, shift + 2.0), shift + 2.0),
        Record(shift + 1.0, (shift + 4.0,), shift + 4.0),
    ]
    expect(
        [goodput(records, slo) for slo in (Slo(ttft=1.0), Slo(), Slo(0.1, 0.1, 0.1))],
        [0.25, 0.375, 0.0],
        call="goodput of four requests over 8 s, one of them failed: TTFT within 1 s, any answer, "
        "all limits 0.1 s",
        cause="from the earliest due to the latest end, in whatever order the records are, and "
        "however they ended",
    )
    expect(
        [goodput([Record(1.0, (end,), end)] if end else [], Slo()) for end in (0, 1.0, 1.25)],
        [0.0, 0.0, 4.0],
        call="goodput of no requests, of a run without duration, and of one answer in 0.25 s",
    )
