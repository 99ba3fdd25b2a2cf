"""Attention as torch has it."""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    window: int | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """What the last T of S tokens see of K and V."""
    if mask is None:
        mask = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))
        if window is not None:
            mask &= ~torch.ones_like(mask).tril(len(k) - len(q) - window)
    heads = (x.transpose(0, 1)[None] for x in (q, k, v))
    out = scaled_dot_product_attention(*heads, attn_mask=mask, scale=scale, enable_gqa=True)
    return out[0].transpose(0, 1)
