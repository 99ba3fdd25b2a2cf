"""Attention over K and V that are spread over blocks: gather a sequence's blocks, then as ever."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from nanovllm.model.attention import attention
from nanovllm.paging.batch import PagedBatch
from nanovllm.paging.block_table import blocks_for

# (q [T,H,D], k_cache [B,P,G,D], v_cache, batch, scale=None, window=None) -> [T,H,D]: what may be
# replaced by a faster kernel. The step's own k and v are in the cache already.
PagedAttention = Callable[..., Tensor]


def gather(
    cache: Float[Tensor, "B P G D"], block_table: Int[Tensor, "M"], context_len: int
) -> Float[Tensor, "S G D"]:
    """The first `context_len` tokens of one sequence, in order, from its blocks.

    >>> cache = torch.arange(6.0).view(3, 2, 1, 1)  # block b holds 2b, 2b + 1
    >>> gather(cache, torch.tensor([2, 0]), 3).flatten()
    tensor([4., 5., 0.])
    """
    ### BEGIN SOLUTION
    return cache[block_table].flatten(0, 1)[:context_len]
    ### END SOLUTION


def paged_attention(
    q: Float[Tensor, "T H D"],
    k_cache: Float[Tensor, "B P G D"],
    v_cache: Float[Tensor, "B P G D"],
    batch: PagedBatch,
    scale: float | None = None,
    window: int | None = None,
) -> Float[Tensor, "T H D"]:
    """Each sequence's queries over its own blocks, causal; its queries are its newest tokens.

    Sequences with one query (decodes) are done together by `attend_decodes`; those with more,
    one at a time, each a product large enough to be worth a call.
    """
    ### BEGIN SOLUTION
    out = torch.empty_like(q)
    starts, contexts = batch.query_start_loc.tolist(), batch.context_lens.tolist()
    lengths = batch.query_start_loc.diff()
    decodes = (lengths == 1).nonzero()[:, 0]
    if len(decodes):
        rows = batch.query_start_loc[decodes]
        tables, ends = batch.block_tables[decodes], batch.context_lens[decodes]
        out[rows] = attend_decodes(q[rows], k_cache, v_cache, tables, ends, scale, window)
    for i in (lengths > 1).nonzero()[:, 0].tolist():
        mine = slice(starts[i], starts[i + 1])
        k = gather(k_cache, batch.block_tables[i], contexts[i])
        v = gather(v_cache, batch.block_tables[i], contexts[i])
        out[mine] = attention(q[mine], k, v, scale, window)
    return out
    ### END SOLUTION


def attend_decodes(
    q: Float[Tensor, "N H D"],
    k_cache: Float[Tensor, "B P G D"],
    v_cache: Float[Tensor, "B P G D"],
    block_tables: Int[Tensor, "N M"],
    context_lens: Int[Tensor, "N"],
    scale: float | None = None,
    window: int | None = None,
) -> Float[Tensor, "N H D"]:
    """One query of each of N sequences, the newest token of its context, in one call for all.

    The blocks are read as a rectangle [N, M * P]; a mask hides what is behind each context's
    end and, with a window, what is further back than that. Hidden places may hold anything,
    even NaN, and a NaN times a weight of 0 is still NaN: so they are set to 0 once gathered.
    """
    ### BEGIN SOLUTION
    rows, heads, dim = q.shape
    groups = k_cache.shape[2]
    most = blocks_for(int(context_lens.max()), k_cache.shape[1])
    block_tables = block_tables[:, :most]
    places = torch.arange(most * k_cache.shape[1], device=q.device)
    visible = places < context_lens[:, None]  # [N, S]
    if window is not None:
        visible &= places >= context_lens[:, None] - window
    hidden = ~visible[:, :, None, None]
    k = k_cache[block_tables].flatten(1, 2).masked_fill(hidden, 0.0)  # [N, S, G, D]
    v = v_cache[block_tables].flatten(1, 2).masked_fill(hidden, 0.0)
    out = scaled_dot_product_attention(
        q.view(rows, groups, heads // groups, dim),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=visible[:, None, None],
        scale=scale,
    )
    return out.view(rows, heads, dim)
    ### END SOLUTION
