"""When it pays: tokens that a step yields, over what it costs."""

from collections.abc import Sequence

from nanovllm.batching.simulator import StepCost


def expected_tokens(rate: float, guesses: int) -> float:
    """Tokens that a step yields on average, if each guess stands with this rate: 1 + a + .. + a^k.

    Source: Leviathan et al. 2023, equation 1.

    >>> expected_tokens(0.5, 2), expected_tokens(1.0, 4), expected_tokens(0.9, 0)
    (1.75, 5.0, 1.0)
    """
    raise NotImplementedError("lab08 task 6: expected_tokens")


def speed_up(rate: float, guesses: int, verify: float, draft: float) -> float:
    """How much faster than a token a step: the tokens over v(k) + k c.

    verify: seconds of a step that verifies k guesses over those of a step with none; draft: of a
    forward of the draft model, over the same.

    >>> round(speed_up(0.8, 4, verify=1.66, draft=0.24), 3)
    1.283
    """
    raise NotImplementedError("lab08 task 6: speed_up")


def best_guesses(rate: float, most: int, verify: Sequence[float], draft: float) -> int:
    """The number of guesses, 0 to `most`, with the largest speed-up; of equals the smallest.

    verify[k]: as in `speed_up`; verify[0] is 1.

    >>> best_guesses(0.8, 2, [1.0, 1.1, 1.2], 0.1), best_guesses(0.1, 2, [1.0, 1.1, 1.2], 0.1)
    (2, 0)
    """
    raise NotImplementedError("lab08 task 6: best_guesses")


def speed_up_in_batch(
    rate: float, guesses: int, batch: int, target: StepCost, draft: StepCost | None = None
) -> float:
    """`speed_up` of a step in which `batch` requests decode, each with so many guesses.

    target: what a step of the target costs for all tokens that it computes; draft: what one
    forward of the draft model costs for its tokens, one a request and place; None: guesses cost
    nothing. Places read are left out.

    >>> round(speed_up_in_batch(0.8, 4, 1, StepCost(0.004, 0.0002), StepCost(0.0004, 0.0)), 2)
    2.14
    >>> round(speed_up_in_batch(0.8, 4, 32, StepCost(0.004, 0.0002), StepCost(0.0004, 0.0)), 2)
    0.93
    """
    raise NotImplementedError("lab08 task 6: speed_up_in_batch")
