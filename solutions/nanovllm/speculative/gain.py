"""When it pays: tokens that a step yields, over what it costs."""


def expected_tokens(rate: float, guesses: int) -> float:
    """Tokens that a step yields on average, if each guess stands with this rate: 1 + a + .. + a^k.

    Source: Leviathan et al. 2023, equation 1.

    >>> expected_tokens(0.5, 2), expected_tokens(1.0, 4), expected_tokens(0.9, 0)
    (1.75, 5.0, 1.0)
    """
    ### BEGIN SOLUTION
    return sum(rate**place for place in range(guesses + 1))
    ### END SOLUTION


def speed_up(rate: float, guesses: int, verify: float, draft: float) -> float:
    """How much faster than a token a step: the tokens over v(k) + k c.

    verify: seconds of a step that verifies k guesses over those of a step with none; draft: of a
    forward of the draft model, over the same.

    >>> round(speed_up(0.8, 4, verify=1.66, draft=0.24), 3)
    1.283
    """
    ### BEGIN SOLUTION
    return expected_tokens(rate, guesses) / (verify + guesses * draft)
    ### END SOLUTION


def best_guesses(rate: float, most: int, verify: list[float], draft: float) -> int:
    """The number of guesses, 0 to `most`, with the largest speed-up; of equals the smallest.

    verify[k]: as in `speed_up`; verify[0] is 1.

    >>> best_guesses(0.8, 2, [1.0, 1.1, 1.2], 0.1), best_guesses(0.1, 2, [1.0, 1.1, 1.2], 0.1)
    (2, 0)
    """
    ### BEGIN SOLUTION
    return max(range(most + 1), key=lambda k: (speed_up(rate, k, verify[k], draft), -k))
    ### END SOLUTION
