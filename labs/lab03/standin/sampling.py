"""A draw by temperature alone: enough for an engine that has to draw the same token twice."""

from collections.abc import Sequence

import torch

from nanovllm.generation.events import Sampled
from nanovllm.generation.keys import key_tensors, uniform
from nanovllm.generation.rows import Logits, Sampler, SamplingRow, argmax_sampler

__all__ = ["Logits", "Sampler", "SamplingRow", "argmax_sampler", "sample"]


def sample(logits: Logits, rows: Sequence[SamplingRow]) -> list[Sampled]:
    """One token a row, by Gumbel's trick; every other parameter is left out."""
    warm = torch.tensor([row.params.temperature for row in rows])[:, None]
    keys = key_tensors([row.seed for row in rows], [row.position for row in rows], logits.device)
    noise = -torch.log(-torch.log(uniform(*keys, logits.shape[-1])))
    return [Sampled(token) for token in (logits + warm * noise).argmax(-1).tolist()]
