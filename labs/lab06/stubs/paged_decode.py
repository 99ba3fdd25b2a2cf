"""Decode attention over the paged cache, one query a sequence (PagedAttention, Kwon 2023)."""

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from nanovllm.kernels.runtime import launch

# lab06 task 6: your kernels and helpers for what stands below.


def paged_decode(
    q: Float[Tensor, "N H D"],
    k_cache: Float[Tensor, "B P G D"],
    v_cache: Float[Tensor, "B P G D"],
    block_tables: Int[Tensor, "N M"],
    context_lens: Int[Tensor, "N"],
    scale: float | None = None,
    window: int | None = None,
    out: Float[Tensor, "N H D"] | None = None,
) -> Float[Tensor, "N H D"]:
    """Each query over the first context_lens[n] positions of its blocks, into `out`.

    With a window, over the last `window` of them. Each visible key and value is read once for
    all the query heads that share it, and nothing else of the caches is read. An empty context
    gives zeros. `scale` is D ** -0.5 unless given; sums are float32, rounded to the type of
    `out` at the end. A row of block_tables, and context_lens, is contiguous.

    >>> one = torch.ones(1, 1, 1)  # N, H, D
    >>> k = torch.zeros(2, 2, 1, 1)  # all keys alike: the values' mean
    >>> v = torch.tensor([[8.0, 0.0], [1.0, 3.0]]).view(2, 2, 1, 1)
    >>> table, context = torch.tensor([[1, 0]]), torch.tensor([3])
    >>> paged_decode(one, k, v, table, context).item()  # of 1, 3 and 8
    4.0
    """
    raise NotImplementedError("lab06 task 6: paged_decode")
