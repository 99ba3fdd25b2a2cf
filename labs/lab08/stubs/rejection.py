"""Rejection sampling: guesses from q, tokens as if drawn from p. Pure functions of uniforms.

Source: Leviathan, Kalman and Matias, "Fast Inference from Transformers via Speculative Decoding",
2023, algorithm 1; Chen et al., "Accelerating LLM Decoding with Speculative Sampling", 2023.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from nanovllm.generation import chain
from nanovllm.generation.rows import Logits, SamplingRow


def distribution(logits: Logits, rows: Sequence[SamplingRow]) -> Float[Tensor, "N V"]:
    """The probabilities from which lab 03's `sample` draws, one row for each row of logits.

    float64, each row adds up to 1. Row i is that of `rows[i]`: its parameters, prompt and output
    tokens, in the order of the sampler's chain. A greedy row has probability 1 on its likeliest
    token (the first of equals) and 0 elsewhere. The logits given are not changed.

    >>> from nanovllm.generation.params import SamplingParams
    >>> row = SamplingRow(SamplingParams(temperature=0.5), [5], [], seed=0)
    >>> distribution(torch.tensor([[0.0, 1.0]]), [row]).round(decimals=3).tolist()
    [[0.119, 0.881]]
    """
    raise NotImplementedError("lab08 task 4: distribution")


def accepts(p: float, q: float, u: float) -> bool:
    """Whether a guess stands that the target gives probability p, and the draft gave q.

    u is uniform in [0, 1); over many u a guess stands with probability min(1, p / q). p = 0 never
    stands.

    >>> accepts(0.3, 0.6, u=0.49), accepts(0.3, 0.6, u=0.51), accepts(0.6, 0.3, u=0.99)
    (True, False, True)
    """
    raise NotImplementedError("lab08 task 4: accepts")


def residual(p: Float[Tensor, " V"], q: Float[Tensor, " V"]) -> Float[Tensor, " V"]:
    """The distribution of the token that takes a rejected guess's place.

    Where p is nowhere larger than q (they are equal, but for rounding), it is p. Neither argument
    is changed.

    >>> residual(torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.6, 0.2])).tolist()
    [1.0, 0.0, 0.0]
    """
    raise NotImplementedError("lab08 task 4: residual")


def pick(probs: Float[Tensor, " V"], u: float) -> int:
    """The token on whose stretch of [0, 1) u lies, token 0 first; never one of probability 0.

    The stretch of a token is as long as its probability. probs may add up to a little less or
    more than 1: stretches are parts of their sum.

    >>> [pick(torch.tensor([0.25, 0.0, 0.75]), u) for u in (0.2, 0.3, 0.99)]
    [0, 2, 2]
    """
    raise NotImplementedError("lab08 task 4: pick")


def rejection_sample(
    p: Float[Tensor, "k+1 V"],
    q: Float[Tensor, "k V"] | None,
    guesses: Sequence[int],
    uniforms: Float[Tensor, "k+1 2"],
) -> tuple[int, ...]:
    """The guesses that stand, and one token more.

    p[i]: the target's distribution behind the first i guesses; q[i]: the one that guess i was
    drawn from; q None: every guess was certain (its q is 1 on the guess, 0 elsewhere).
    uniforms[i]: the first decides on guess i, the second draws the token that takes its place, or,
    in the last row, the token behind all guesses, if all stand. Each is used once at most.

    >>> p = torch.tensor([[0.5, 0.5], [1.0, 0.0]])
    >>> rejection_sample(p, None, [1], torch.tensor([[0.4, 0.0], [0.0, 0.7]]))
    (1, 0)
    >>> rejection_sample(p, None, [1], torch.tensor([[0.6, 0.0], [0.0, 0.7]]))
    (0,)
    """
    raise NotImplementedError("lab08 task 4: rejection_sample")
