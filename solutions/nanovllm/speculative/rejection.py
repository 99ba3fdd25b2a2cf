"""Rejection sampling: guesses from q, tokens as if drawn from p. Pure functions of uniforms.

Source: Leviathan, Kalman and Matias, "Fast Inference from Transformers via Speculative Decoding",
2023, algorithm 1; Chen et al., "Accelerating LLM Decoding with Speculative Sampling", 2023.
"""

### BEGIN SOLUTION
from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from nanovllm.generation import chain, keys
from nanovllm.generation.events import Sampled
from nanovllm.generation.rows import Logits, SamplingRow
from nanovllm.speculative.proposer import Guesses

SALT = 1 << 32  # of the noise of judging and drafting: no sample of a request has this index


def distribution(logits: Logits, rows: Sequence[SamplingRow]) -> Float[Tensor, "N V"]:
    """What lab 03's sampler draws from, row by row; a greedy row has all on its likeliest token."""
    shaped = chain.apply_min_tokens(logits.float(), rows)
    shaped = chain.apply_penalties(chain.apply_logit_bias(shaped, rows), rows)
    best = torch.nn.functional.one_hot(shaped.argmax(dim=-1), shaped.shape[-1]).double()
    params = [row.params for row in rows]

    def column(values: list) -> Tensor:
        return torch.tensor(values, device=logits.device)

    shaped = chain.apply_temperature(shaped, column([p.temperature for p in params]))
    shaped = chain.apply_min_p(shaped, column([p.min_p for p in params]))
    shaped = chain.apply_top_k(shaped, column([p.top_k for p in params]))
    shaped = chain.apply_top_p(shaped, column([p.top_p for p in params]))
    greedy = column([p.greedy for p in params])[:, None]
    return torch.where(greedy, best, shaped.double().softmax(dim=-1))


def accepts(p: float, q: float, u: float) -> bool:
    """Whether a guess stands, which the target gives p and the draft gave q: in p / q of cases.

    >>> accepts(0.3, 0.6, u=0.49), accepts(0.3, 0.6, u=0.51), accepts(0.6, 0.3, u=0.99)
    (True, False, True)
    """
    return u * q < p


def residual(p: Float[Tensor, V], q: Float[Tensor, V]) -> Float[Tensor, V]:
    """What is drawn from in place of a rejected guess: max(p - q, 0), made to add up to 1.

    >>> residual(torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.6, 0.2])).tolist()
    [1.0, 0.0, 0.0]
    """
    left = (p - q).clamp(min=0)
    total = left.sum()
    return left / total if total > 0 else p


def pick(probs: Float[Tensor, V], u: float) -> int:
    """The token on whose stretch of [0, 1) u lies; never one of probability 0.

    >>> [pick(torch.tensor([0.25, 0.0, 0.75]), u) for u in (0.2, 0.3, 0.99)]
    [0, 2, 2]
    """
    ends = probs.double().cumsum(dim=0)
    token = int(torch.searchsorted(ends, u * ends[-1], right=True))
    return min(token, int(probs.nonzero().max()))


def rejection_sample(
    p: Float[Tensor, "k+1 V"],
    q: Float[Tensor, "k V"] | None,
    guesses: Sequence[int],
    uniforms: Float[Tensor, "k+1 2"],
) -> tuple[int, ...]:
    """The guesses that stand, and one token more: from the residual, or behind all of them from p.

    q None: every guess was certain. uniforms[i]: the first decides on guess i, the second draws.

    >>> p = torch.tensor([[0.5, 0.5], [1.0, 0.0]])
    >>> rejection_sample(p, None, [1], torch.tensor([[0.4, 0.0], [0.0, 0.7]]))
    (1, 0)
    >>> rejection_sample(p, None, [1], torch.tensor([[0.6, 0.0], [0.0, 0.7]]))
    (0,)
    """
    for i, guess in enumerate(guesses):
        drawn_from = _one_hot(guess, p[i]) if q is None else q[i].to(p)
        u, noise = uniforms[i].tolist()
        if not accepts(float(p[i, guess]), float(drawn_from[guess]), u):
            return (*guesses[:i], pick(residual(p[i], drawn_from), noise))
    return (*guesses, pick(p[len(guesses)], float(uniforms[len(guesses), 1])))


def _one_hot(token_id: int, like: Float[Tensor, V]) -> Float[Tensor, V]:
    return torch.zeros_like(like).index_fill_(0, torch.tensor([token_id], device=like.device), 1.0)


def judge(
    logits: Float[Tensor, "k+1 V"], rows: Sequence[SamplingRow], guesses: Guesses
) -> tuple[Sampled, ...]:
    """Rejection sampling of one request's guesses, with noise from (seed, position) of each row."""
    seeds = [keys.sample_seed(row.seed, SALT + 1) for row in rows]
    key = keys.key_tensors(seeds, [row.position for row in rows], logits.device)
    p = distribution(logits, rows)
    tokens = rejection_sample(p, guesses.probs, guesses.token_ids, keys.uniform(*key, 2))
    count = rows[0].params.logprobs
    return tuple(
        Sampled(token, None if count is None else chain.gather_logprobs(raw, token, count))
        for token, raw in zip(tokens, logits, strict=False)
    )


### END SOLUTION
