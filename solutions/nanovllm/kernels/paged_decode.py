"""Decode attention over the paged cache, one query a sequence (PagedAttention, Kwon 2023)."""

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from nanovllm.kernels.runtime import launch

### BEGIN SOLUTION
NO_WINDOW = 2**30  # more positions than any context has


@triton.jit
def gather_tile(
    cache, stride_b, stride_p, stride_h, stride_d, table, positions, visible, head,
    BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_DIM: tl.constexpr,
):  # fmt: skip
    """K or V [TILE, BLOCK_DIM] of one head at these positions; 0 where not visible."""
    block = tl.load(table + positions // BLOCK_SIZE, mask=visible, other=0).to(tl.int64)
    rows = cache + block * stride_b + positions % BLOCK_SIZE * stride_p
    dims = tl.arange(0, BLOCK_DIM)
    places = rows[:, None] + head * stride_h + dims[None, :] * stride_d
    return tl.load(places, mask=visible[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)


@triton.jit
def online_softmax(maximum, total, values_sum, scores, values):
    """One tile more: all that was summed so far is rescaled to the larger maximum."""
    larger = tl.maximum(maximum, tl.max(scores, 1))
    base = tl.where(larger == float("-inf"), 0.0, larger)  # -inf - -inf would be NaN
    shrink = tl.exp2(maximum - base)
    weights = tl.exp2(scores - base[:, None])
    total = total * shrink + tl.sum(weights, 1)
    product = tl.dot(weights.to(values.dtype), values, input_precision="ieee")
    return larger, total, values_sum * shrink[:, None] + product


@triton.jit
def attend_range(
    queries, query_positions, begin, end, scale, window, table, head,
    k_cache, stride_kb, stride_kp, stride_kh, stride_kd,
    v_cache, stride_vb, stride_vp, stride_vh, stride_vd,
    BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Maximum [ROWS], total [ROWS] and values_sum [ROWS, BLOCK_DIM] over begin .. end - 1."""
    maximum = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    values_sum = tl.zeros([ROWS, BLOCK_DIM], tl.float32)
    for start in range(begin, end, TILE):
        positions = start + tl.arange(0, TILE)
        visible = positions < end
        keys = gather_tile(
            k_cache, stride_kb, stride_kp, stride_kh, stride_kd,
            table, positions, visible, head, BLOCK_SIZE, HEAD_DIM, BLOCK_DIM,
        )  # fmt: skip
        values = gather_tile(
            v_cache, stride_vb, stride_vp, stride_vh, stride_vd,
            table, positions, visible, head, BLOCK_SIZE, HEAD_DIM, BLOCK_DIM,
        )  # fmt: skip
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee")
        distance = query_positions[:, None] - positions[None, :]
        seen = visible[None, :] & (distance >= 0) & (distance < window)
        scores = tl.where(seen, scores * (scale * 1.4426950408889634), float("-inf"))  # log2(e)
        maximum, total, values_sum = online_softmax(maximum, total, values_sum, scores, values)
    return maximum, total, values_sum


@triton.jit
def paged_decode_kernel(
    q, stride_qn, stride_qh, stride_qd,
    k_cache, stride_kb, stride_kp, stride_kh, stride_kd,
    v_cache, stride_vb, stride_vp, stride_vh, stride_vd,
    block_tables, stride_table, context_lens, scale, window, out, stride_on, stride_oh, stride_od,
    GROUP: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Program (n, g): the H/G query heads of sequence n that share key head g, all at once."""
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    context = tl.load(context_lens + sequence)
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, BLOCK_DIM)
    inside = (rows < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    heads = (head * GROUP + rows)[:, None]
    places = sequence * stride_qn + heads * stride_qh + dims[None, :] * stride_qd
    queries = tl.load(q + places, mask=inside, other=0.0)
    _, total, values_sum = attend_range(  # pyright: ignore[reportGeneralTypeIssues]  # triton says it never returns
        queries, tl.zeros([ROWS], tl.int32) + context - 1, tl.maximum(context - window, 0),
        context, scale, window, block_tables + sequence * stride_table, head,
        k_cache, stride_kb, stride_kp, stride_kh, stride_kd,
        v_cache, stride_vb, stride_vp, stride_vh, stride_vd,
        BLOCK_SIZE, HEAD_DIM, ROWS, BLOCK_DIM, TILE,
    )  # fmt: skip
    result = values_sum / tl.where(total > 0, total, 1.0)[:, None]
    place = out + sequence * stride_on + heads * stride_oh
    tl.store(place + dims[None, :] * stride_od, result, mask=inside)


def constants(group: int, cache: Tensor) -> dict[str, Any]:
    """The compile-time sizes; K's and V's tiles have to fit into shared memory, twice."""
    dim = cache.shape[3]
    return {
        "GROUP": group, "BLOCK_SIZE": cache.shape[1], "HEAD_DIM": dim,
        "ROWS": max(16, triton.next_power_of_2(group)),  # of a tensor core
        "BLOCK_DIM": max(16, triton.next_power_of_2(dim)),
        "TILE": 64 if dim * cache.element_size() <= 256 else 32,
    }  # fmt: skip


### END SOLUTION
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
    ### BEGIN SOLUTION
    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    num_seqs, num_heads, dim = q.shape
    launch(
        paged_decode_kernel, (num_seqs, k_cache.shape[2]),
        q, *q.stride(), k_cache, *k_cache.stride(), v_cache, *v_cache.stride(),
        block_tables, block_tables.stride(0), context_lens,
        dim**-0.5 if scale is None else scale, NO_WINDOW if window is None else window,
        out, *out.stride(), **constants(num_heads // k_cache.shape[2], k_cache),
    )  # fmt: skip
    return out
    ### END SOLUTION
