"""Attention over K and V that are spread over blocks: every token is read by its slot."""

### BEGIN SOLUTION
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from nanovllm.paging.batch import PagedBatch
from nanovllm.paging.reads import GROUP, ReadPlan, Rectangle, plan_reads, visible_places


def gather(
    cache: Float[Tensor, "B P G D"], block_table: Int[Tensor, "M"], context_len: int
) -> Float[Tensor, "S G D"]:
    """The first `context_len` tokens of one sequence, in order, from its blocks.

    >>> cache = torch.arange(6.0).view(3, 2, 1, 1)  # block b holds 2b, 2b + 1
    >>> gather(cache, torch.tensor([2, 0]), 3).flatten()
    tensor([4., 5., 0.])
    """
    return cache[block_table].flatten(0, 1)[:context_len]


def paged_attention(
    q: Float[Tensor, "T H D"],
    k_cache: Float[Tensor, "B P G D"],
    v_cache: Float[Tensor, "B P G D"],
    batch: PagedBatch,
    scale: float | None = None,
    window: int | None = None,
) -> Float[Tensor, "T H D"]:
    """Each sequence's queries over its own blocks, causal; its queries are its newest tokens.

    Sequences with one query (decodes) are done in groups of about the same context; those with
    more, one at a time, each a product large enough to be worth a call. The result has q's
    dtype; sums are taken in float32.
    """
    block_size = k_cache.shape[1]
    if block_size not in batch.reads:  # the first layer of the step
        batch.reads[block_size] = plan_reads(batch, block_size)
    plan: ReadPlan = batch.reads[block_size]
    out = torch.empty_like(q)
    if plan.rectangles:
        groups = q.index_select(0, plan.rows).split(GROUP)
        done = [
            attend_rectangle(queries, k_cache, v_cache, rectangle, scale, window)
            for queries, rectangle in zip(groups, plan.rectangles, strict=True)
        ]
        out[plan.rows] = torch.cat(done)
    for i, mine, context in plan.prompts:
        k = gather(k_cache, batch.block_tables[i], context)
        v = gather(v_cache, batch.block_tables[i], context)
        out[mine] = attend_prompt(q[mine], k, v, scale, window)
    return out


def attend_prompt(
    q: Float[Tensor, "T H D"],
    k: Float[Tensor, "S G D"],
    v: Float[Tensor, "S G D"],
    scale: float | None = None,
    window: int | None = None,
) -> Float[Tensor, "T H D"]:
    """Lab 02's `attention`, causal, by torch's own: it never holds all T * S scores at once."""
    ends = torch.arange(len(k) - len(q), len(k), device=q.device)[:, None] + 1  # [T, 1]
    out = scaled_dot_product_attention(
        *(x.transpose(0, 1)[None] for x in (q, k, v)),  # [1, H or G, T or S, D]
        attn_mask=visible_places(ends, len(k), window),
        scale=scale,
        enable_gqa=True,
    )
    return out[0].transpose(0, 1)


def attend_rectangle(
    q: Float[Tensor, "N H D"],
    k_cache: Float[Tensor, "B P G D"],
    v_cache: Float[Tensor, "B P G D"],
    rectangle: Rectangle,
    scale: float | None = None,
    window: int | None = None,
) -> Float[Tensor, "N H D"]:
    """One query of each of N sequences, the newest token of its context, in one call for all.

    A mask hides what stands behind a context's end and, with a window, what is further back.
    The H/G heads that share a key head become queries of one row: they see the same places.
    """
    rows, heads, dim = q.shape
    groups, width = k_cache.shape[2], rectangle.slots.shape[1]
    slots, ends = rectangle.slots.flatten(), rectangle.context_lens[:, None]
    k, v = (
        cache.flatten(0, 1).index_select(0, slots).view(rows, width, groups, dim).transpose(1, 2)
        for cache in (k_cache, v_cache)
    )  # [N, G, S, D]
    out = scaled_dot_product_attention(
        q.reshape(rows, groups, heads // groups, dim),
        k,
        v,
        attn_mask=visible_places(ends, width, window)[:, None, None],
        scale=scale,
    )
    return out.reshape(rows, heads, dim)


### END SOLUTION
