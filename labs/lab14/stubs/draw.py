"""Lab 03's draws without waiting for the device: tokens are drawn there, and stay there."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nanovllm.generation.chain import (
    apply_min_p,
    apply_temperature,
    apply_top_k,
    apply_top_p,
    draw,
)
from nanovllm.generation.keys import key_tensors
from nanovllm.generation.params import SamplingParams
from nanovllm.performance.transfer import send

NOT_FINITE = -1  # in place of a token: the largest logit is NaN or infinite


@dataclass(frozen=True)
class Draw:
    """What a row's draw depends on, its logits aside.

    position: where the token will stand; with the seed it is the key of lab 03.
    """

    params: SamplingParams
    seed: int
    position: int


def likeliest(logits: Float[Tensor, "N V"]) -> Int[Tensor, "N"]:
    """The argmax of each row; -1 where the largest logit is no finite number.

    >>> likeliest(torch.tensor([[1.0, 2.0, 2.0], [0.0, torch.nan, 9.0]]))
    tensor([ 1, -1])
    """
    top, token_ids = logits.max(dim=-1)
    return torch.where(top.isfinite(), token_ids, NOT_FINITE)


def draw_tokens(logits: Float[Tensor, "N V"], draws: Sequence[Draw]) -> Int[Tensor, "N"]:
    """What lab 03's `sample` draws for these rows; -1 as `likeliest`.

    Its own steps, on columns from pinned memory: `sample` would wait for the device four times.
    """
    tokens, params = likeliest(logits), [each.params for each in draws]
    if all(p.greedy for p in params):
        return tokens
    device = logits.device

    def column(values: list[float], dtype: torch.dtype = torch.float32) -> Tensor:
        return send(torch.tensor(values, dtype=dtype), device)

    logits = apply_temperature(logits.float(), column([p.temperature for p in params]))
    if any(p.min_p for p in params):
        logits = apply_min_p(logits, column([p.min_p for p in params]))
    if any(p.top_k for p in params):
        logits = apply_top_k(logits, column([p.top_k for p in params], torch.int64))
    if any(p.top_p < 1 for p in params):
        logits = apply_top_p(logits, column([p.top_p for p in params]))
    keys = key_tensors([d.seed for d in draws], [d.position for d in draws], torch.device("cpu"))
    drawn = draw(logits, *(send(key, device) for key in keys))
    settled = column([p.greedy for p in params], torch.bool) | (tokens == NOT_FINITE)
    return torch.where(settled, tokens, drawn)
