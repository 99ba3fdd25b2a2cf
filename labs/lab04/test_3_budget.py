"""Task 3: the token budget and its controller."""

import pytest

from grader import expect
from nanovllm.batching.budget import AdaptiveBudget, token_budget


@pytest.mark.check(task=3, points=2, title="The least of three limits, but enough for every decode")
def test_token_budget():
    cases = [(512, 300, 400, 8), (256, 300, 400, 8), (512, 300, 90, 8), (512, 6, 90, 8),
             (512, 300, 3, 8), (100, 300, 400, 8), (4, 300, 400, 8), (512, 300, 0, 0)]  # fmt: skip
    expect(
        [token_budget(hardware=h, compute=c, memory=m, decodes=d) for h, c, m, d in cases],
        [300, 256, 90, 8, 8, 100, 8, 0],
        call="token_budget for eight (hardware, compute, memory, decodes)",
        given={"cases": cases},
        cause="no limit may be passed, but a decode may not wait for one either",
    )


def limits(budget, steps):
    seen = []
    for seconds, free in steps:
        budget.observe(seconds, free)
        seen.append(budget.limit)
    return seen


@pytest.mark.check(task=3, points=2, title="One rule a step: memory, then slow, then fast")
def test_rules():
    steps = [(0.051, 0.5), (0.029, 0.5), (0.040, 0.5), (0.050, 0.5), (0.030, 0.5), (0.010, 0.14),
             (0.080, 0.14), (0.080, 0.15), (0.010, 0.15), (0.040, 0.0)]  # fmt: skip
    seen = limits(AdaptiveBudget(limit=1000, lowest=1, highest=5000), steps)
    expect(
        seen,
        [800, 880, 880, 880, 880, 660, 495, 396, 435, 326],
        call="the limit after ten steps, from 1000",
        given={"(seconds, free share)": steps},
        cause="under 15 % free - 25 %, else over 50 ms - 20 %, else under 30 ms + 10 %",
    )
    expect(
        [type(limit).__name__ for limit in seen],
        ["int"] * 10,
        call="the types of these limits",
        cause="a step has a whole number of tokens",
    )
    steps = [(0.5, 0.5), (0.25, 0.5), (0.6, 0.5), (0.2, 0.5), (0.2, 0.4), (0.3, 0.6)]
    expect(
        limits(AdaptiveBudget(100, 1, 500, slow=0.5, fast=0.25, scarce=0.5), steps),
        [100, 100, 80, 88, 66, 66],
        call="the limit after six steps, from 100, with slow 0.5 s, fast 0.25 s, scarce 0.5",
        given={"(seconds, free share)": steps},
        cause="the three marks are settings of the budget",
    )


@pytest.mark.check(task=3, points=1, title="The controller stays in its bounds and settles")
def test_bounds():
    expect(
        limits(AdaptiveBudget(limit=18, lowest=16, highest=20), [(0.09, 0.5)] * 2)
        + limits(AdaptiveBudget(limit=18, lowest=16, highest=20), [(0.01, 0.5)] * 4)
        + limits(AdaptiveBudget(limit=18, lowest=16, highest=20), [(0.01, 0.01)] * 2),
        [16, 16, 19, 20, 20, 20, 16, 16],
        call="the limit between 16 and 20: slow, fast and scarce steps from 18",
        cause="never outside lowest .. highest",
    )
    expect(
        limits(AdaptiveBudget(limit=4, lowest=1, highest=100), [(0.01, 0.5)] * 4),
        [5, 6, 7, 8],
        call="the limit after fast steps, from 4",
        cause="10 % of a few tokens, rounded down, is nothing: it would never grow",
    )
    budget = AdaptiveBudget(limit=2000, lowest=1, highest=5000)
    seen = []
    for _ in range(40):  # a machine that computes 10 tokens in a millisecond
        budget.observe(budget.limit / 10_000, 0.5)
        seen.append(budget.limit)
    expect(
        seen[-1],
        419,
        call="the limit after 40 steps on a machine of 10 tokens a millisecond, from 2000",
        cause="300 to 500 tokens take 30 to 50 ms: once there, the limit must stay",
    )
