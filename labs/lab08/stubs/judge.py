"""Rejection sampling in the engine: one request's guesses, with noise by its seed (given)."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from nanovllm.generation import chain, keys
from nanovllm.generation.events import Sampled
from nanovllm.generation.masks import apply_masks, without_dead_ends
from nanovllm.generation.rows import SamplingRow
from nanovllm.speculative.draft_sequence import SALT
from nanovllm.speculative.proposer import Guesses
from nanovllm.speculative.rejection import distribution, rejection_sample


def judge(
    logits: Float[Tensor, "k+1 V"], rows: Sequence[SamplingRow], guesses: Guesses
) -> tuple[Sampled, ...]:
    """Rejection sampling of one request's guesses, with noise from (seed, position) of each row."""
    seeds = [keys.sample_seed(row.seed, SALT + 1) for row in rows]
    key = keys.key_tensors(seeds, [row.position for row in rows], logits.device)
    masked = apply_masks(logits, rows)
    p = distribution(masked, without_dead_ends(masked, rows))
    tokens = rejection_sample(p, guesses.probs, guesses.token_ids, keys.uniform(*key, 2))
    count = rows[0].params.logprobs
    return tuple(
        Sampled(token, None if count is None else chain.gather_logprobs(raw, token, count))
        for token, raw in zip(tokens, logits, strict=False)
    )
