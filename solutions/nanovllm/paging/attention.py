"""Attention over K and V that are spread over blocks: every token is read by its slot."""

### BEGIN SOLUTION
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from nanovllm.paging.batch import PagedBatch

GROUP = 8  # decodes read together: larger groups save calls, smaller ones save padding


def gather(
    cache: Float[Tensor, "B P G D"], block_table: Int[Tensor, "M"], context_len: int
) -> Float[Tensor, "S G D"]:
    """The first `context_len` tokens of one sequence, in order, from its blocks.

    >>> cache = torch.arange(6.0).view(3, 2, 1, 1)  # block b holds 2b, 2b + 1
    >>> gather(cache, torch.tensor([2, 0]), 3).flatten()
    tensor([4., 5., 0.])
    """
    return cache[block_table].flatten(0, 1)[:context_len]


@dataclass(frozen=True)
class Rectangle:
    """The tokens of a few decodes of about the same length, as one rectangle of slots.

    Behind the end of a shorter context its last token stands again: every slot that is read
    holds a token, so that what lies in unused ones (NaN, even) is never touched.
    """

    slots: Int[Tensor, "N S"]
    context_lens: Int[Tensor, "N"]


@dataclass(frozen=True)
class ReadPlan:
    """Who reads what in a step: the same for every layer, and worked out once.

    rows: where the decodes' queries stand among the step's tokens, shortest context first.
    rectangles: those decodes, group by group. prompts: of each other sequence its number, its
    tokens in the step and the length of its context.
    """

    rows: Int[Tensor, "N"]
    rectangles: tuple[Rectangle, ...]
    prompts: tuple[tuple[int, slice, int], ...]


def read_rectangle(
    block_tables: Int[Tensor, "N M"], context_lens: Int[Tensor, "N"], block_size: int
) -> Rectangle:
    """The slots of all tokens of N contexts, as wide as the longest.

    >>> read_rectangle(torch.tensor([[2, 0], [1, 0]]), torch.tensor([3, 1]), block_size=2).slots
    tensor([[4, 5, 0],
            [2, 2, 2]])
    """
    last = context_lens.long()[:, None] - 1
    places = torch.arange(int(last.max()) + 1, device=last.device).minimum(last)  # [N, S]
    blocks = block_tables.long().gather(1, places // block_size)
    return Rectangle(blocks * block_size + places % block_size, context_lens)


def plan_reads(batch: PagedBatch, block_size: int) -> ReadPlan:
    """Sort a step's sequences into decodes (one query), in groups of equal length, and others."""
    starts, contexts = batch.query_start_loc.tolist(), batch.context_lens.tolist()
    spans = [slice(a, b) for a, b in pairwise(starts)]
    lengths = [span.stop - span.start for span in spans]
    decodes = sorted((i for i, n in enumerate(lengths) if n == 1), key=contexts.__getitem__)
    sequences = torch.tensor(decodes, dtype=torch.long, device=batch.context_lens.device)
    tables, ends = batch.block_tables[sequences], batch.context_lens[sequences]
    return ReadPlan(
        batch.query_start_loc[sequences].long(),
        tuple(
            read_rectangle(tables[at : at + GROUP], ends[at : at + GROUP], block_size)
            for at in range(0, len(decodes), GROUP)
        ),
        tuple((i, spans[i], contexts[i]) for i, n in enumerate(lengths) if n > 1),
    )


def visible_places(
    ends: Int[Tensor, "N 1"], width: int, window: int | None = None
) -> Bool[Tensor, "N S"]:
    """Of the places 0 .. width - 1, those before each end; with a window, the last of those.

    >>> visible_places(torch.tensor([[1], [3]]), 4, window=2).int()
    tensor([[1, 0, 0, 0],
            [0, 1, 1, 0]], dtype=torch.int32)
    """
    places = torch.arange(width, device=ends.device)
    visible = places < ends
    if window is not None:
        visible &= places >= ends - window
    return visible


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
