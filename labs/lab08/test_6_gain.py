"""Task 6: when it pays."""

from fractions import Fraction
from itertools import product

import pytest

from grader import expect
from nanovllm.batching.simulator import StepCost
from nanovllm.speculative.gain import best_guesses, expected_tokens, speed_up, speed_up_in_batch


def enumerated(rate, guesses):
    """Tokens of a step on average, by all ways in which its guesses can stand or fall."""
    total = Fraction(0)
    for stood in product((True, False), repeat=guesses):
        chance = Fraction(1)
        for one in stood:
            chance *= rate if one else 1 - rate
        total += chance * (1 + [*stood, False].index(False))
    return float(total)


@pytest.mark.check(task=6, points=1, title="Tokens of a step, on average")
def test_expected_tokens():
    expect(
        [expected_tokens(0.8, k) for k in (0, 1, 2, 4)],
        [1.0, 1.8, 2.44, 3.3616],
        call="expected_tokens(0.8, k) for k = 0, 1, 2, 4",
        cause="the target's own token always comes; guess j stands only if the j - 1 before it do",
    )
    expect(
        [expected_tokens(rate, k) for rate in (0.0, 1.0) for k in (0, 3)],
        [1.0, 1.0, 1.0, 4.0],
        call="expected_tokens(rate, k) for (0, 0), (0, 3), (1, 0), (1, 3)",
        cause="never right: one token; always right: all guesses, and one more",
    )
    rates = [Fraction(n, 20) for n in (1, 7, 13, 19)]
    expect(
        [expected_tokens(float(rate), k) for rate in rates for k in (1, 3, 6)],
        [enumerated(rate, k) for rate in rates for k in (1, 3, 6)],
        call="expected_tokens of rates 0.05, 0.35, 0.65, 0.95 with 1, 3, 6 guesses, against the "
        "sum over all ways in which guesses can stand or fall",
    )


@pytest.mark.check(task=6, points=1, title="Speed-up: tokens over cost")
def test_speed_up():
    expect(
        [
            speed_up(0.8, 4, verify=1.66, draft=0.24),
            speed_up(0.5, 2, verify=1.0, draft=0.0),
            speed_up(0.0, 3, verify=1.25, draft=0.25),
            speed_up(1.0, 3, verify=1.25, draft=0.25),
        ],
        [3.3616 / 2.62, 1.75, 0.5, 2.0],
        call="speed_up(0.8, 4, 1.66, 0.24), (0.5, 2, 1, 0), (0, 3, 1.25, 0.25), (1, 3, 1.25, 0.25)",
        cause="the cost is that of one step that verifies, and of one draft forward for each guess",
    )
    expect(
        speed_up(0.7, 0, verify=1.0, draft=0.3),
        1.0,
        call="speed_up(0.7, 0, verify=1.0, draft=0.3)",
        cause="without guesses there is no forward of the draft model",
    )


@pytest.mark.check(task=6, points=1, title="The best number, the smallest of equals")
def test_best_guesses():
    flat, steep = [1.0, 1.05, 1.1, 1.15, 1.2, 1.25], [1.0, 1.9, 2.8, 3.7, 4.6, 5.5]
    expect(
        [
            best_guesses(rate, 5, verify, draft)
            for verify in (flat, steep)
            for rate, draft in ((0.9, 0.05), (0.9, 0.45), (0.5, 0.05), (0.05, 0.05))
        ],
        [5, 3, 2, 0, 0, 0, 0, 0],
        call="best_guesses(rate, 5, verify, draft), (rate, draft) = (0.9, 0.05), (0.9, 0.45), "
        "(0.5, 0.05), (0.05, 0.05), with verify flat and then steep",
        given={"flat": flat, "steep": steep},
    )
    expect(
        [best_guesses(0.9, most, flat, 0.05) for most in (0, 1, 3)],
        [0, 1, 3],
        call="best_guesses(0.9, most, flat, 0.05) for most = 0, 1, 3",
        cause="never more than `most`, though verify is longer",
    )
    expect(
        [
            best_guesses(1.0, 3, [1.0, 2.0, 3.0, 4.0], 0.0),
            best_guesses(0.5, 2, [1.0, 1.5, 1.75], 0.0),
            best_guesses(0.5, 3, [1.0, 1.25, 1.5, 1.75], 0.0),
            best_guesses(1.0, 4, [1.0, 1.0, 1.5, 2.0, 2.5], 0.0),
        ],
        [0, 0, 1, 1],
        call="best_guesses(1, 3, [1, 2, 3, 4], 0), (0.5, 2, [1, 1.5, 1.75], 0), "
        "(0.5, 3, [1, 1.25, 1.5, 1.75], 0), (1, 4, [1, 1, 1.5, 2, 2.5], 0)",
        cause="of equal speed-ups the smallest number: it does the least work",
    )


@pytest.mark.check(task=6, points=1, title="The same guesses in a batch")
def test_in_batch():
    target, draft = StepCost(0.004, 0.0002, 5.0), StepCost(0.0004, 0.0, 5.0)
    expect(
        [speed_up_in_batch(0.8, 4, batch, target, draft) for batch in (1, 8, 32)],
        [
            3.3616 * 0.0042 / (0.005 + 4 * 0.0004),
            3.3616 * 0.0056 / (0.012 + 4 * 0.0004),
            3.3616 * 0.0104 / (0.036 + 4 * 0.0004),
        ],
        call="speed_up_in_batch(0.8, 4, batch, target, draft) for batch = 1, 8, 32",
        given={"target": "4 ms + 0.2 ms a token", "draft": "0.4 ms a forward"},
        cause="k + 1 tokens of each request are verified, beside one token of each without guesses",
    )
    dear = StepCost(0.001, 0.0005, 0.0)
    expect(
        [speed_up_in_batch(1.0, 2, batch, target, dear) for batch in (1, 10)],
        [3 * 0.0042 / (0.0046 + 2 * 0.0015), 3 * 0.006 / (0.01 + 2 * 0.006)],
        call="speed_up_in_batch(1, 2, batch, target, draft) for batch = 1, 10",
        given={"target": "4 ms + 0.2 ms a token", "draft": "1 ms + 0.5 ms a token"},
        cause="a forward of the draft model computes one token of each request",
    )
    expect(
        [
            speed_up_in_batch(0.5, 2, 1, StepCost(1.0, 0.25, 1.0)),
            speed_up_in_batch(0.5, 2, 4, StepCost(0.0, 0.25, 1.0)),
            speed_up_in_batch(0.5, 0, 4, target, draft),
        ],
        [1.75 * 1.25 / 1.75, 1.75 / 3, 1.0],
        call="speed_up_in_batch(0.5, 2, 1, 1 s + 0.25 s a token), (0.5, 2, 4, 0.25 s a token), "
        "(0.5, 0, 4, target, draft)",
        cause="guesses that cost nothing still have to be verified; no guesses change nothing",
    )
