"""Attention over K and V that are spread over blocks: every token is read by its slot."""

### BEGIN SOLUTION
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from nanovllm.paging import reads
from nanovllm.paging.batch import PagedBatch


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
    more, one at a time, each a product large enough to be worth a call.
    """
    plan = reads.plan_of(batch, k_cache.shape[1])
    out = torch.empty_like(q)
    if plan.rectangles:
        groups = q.index_select(0, plan.rows).split(reads.GROUP)
        done = [
            attend_rectangle(queries, k_cache, v_cache, rectangle, scale, window)
            for queries, rectangle in zip(groups, plan.rectangles, strict=True)
        ]
        out[plan.rows] = torch.cat(done)
    for i, mine, context in plan.prompts:
        k, v = (reads.gather(cache, batch.block_tables[i], context) for cache in (k_cache, v_cache))
        out[mine] = attend_prompt(q[mine], k, v, scale, window)
    return out


def attend_prompt(
    q: Float[Tensor, "T H D"],
    k: Float[Tensor, "S G D"],
    v: Float[Tensor, "S G D"],
    scale: float | None,
    window: int | None,
) -> Float[Tensor, "T H D"]:
    """The queries of one sequence; they are the last T of its S tokens."""
    ends = torch.arange(len(k) - len(q), len(k), device=q.device)[:, None] + 1  # [T, 1]
    out = scaled_dot_product_attention(
        *(x.transpose(0, 1)[None] for x in (q, k, v)),  # [1, H or G, T or S, D]
        attn_mask=reads.visible_places(ends, len(k), window),
        scale=scale,
        enable_gqa=True,
    )
    return out[0].transpose(0, 1)


def attend_rectangle(
    q: Float[Tensor, "N H D"],
    k_cache: Float[Tensor, "B P G D"],
    v_cache: Float[Tensor, "B P G D"],
    rectangle: reads.Rectangle,
    scale: float | None,
    window: int | None,
) -> Float[Tensor, "N H D"]:
    """One query of each of N sequences, the newest token of its context, in one call for all."""
    k, v = (reads.gather_rectangle(cache, rectangle.slots) for cache in (k_cache, v_cache))
    visible = reads.visible_places(rectangle.context_lens[:, None], rectangle.width, window)
    out = scaled_dot_product_attention(
        q.unflatten(1, (k.shape[1], -1)),  # [N, G, H/G, D]: heads of one key head see the same
        k,
        v,
        attn_mask=visible[:, None, None],
        scale=scale,
    )
    return out.flatten(1, 2)


### END SOLUTION
