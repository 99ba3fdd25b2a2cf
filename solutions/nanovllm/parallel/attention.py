"""A rank's cache and the attention over it: torch's operations, or lab 06's kernels (given)."""

from __future__ import annotations

from typing import Any

import torch

from nanovllm.paging.attention import paged_attention
from nanovllm.paging.batch import PagedAttention
from nanovllm.paging.cache import PagedCache


def cache_and_attention(*sizes: Any) -> tuple[PagedCache, PagedAttention]:
    """PagedCache's arguments, device and all; the kernels on a GPU. Not tried on several GPUs."""
    if torch.device(sizes[4]).type != "cuda":
        return PagedCache(*sizes), paged_attention
    from nanovllm.kernels.attention import TritonPagedCache, triton_paged_attention

    return TritonPagedCache(*sizes), triton_paged_attention
