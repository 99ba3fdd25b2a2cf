"""Attention of chunks of prompts over the paged cache: ragged, causal (FlashAttention-2)."""

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from nanovllm.kernels.flash import attend_range
from nanovllm.kernels.paged_decode import NO_WINDOW, SMALLEST, tile_for
from nanovllm.kernels.runtime import launch


@triton.jit
def paged_prefill_kernel(
    q,  # [T, H, D]: the chunks of N sequences, one after another
    k_cache,  # [B, P, G, D]; the step's own keys and values are in it already
    v_cache,  # [B, P, G, D]
    block_tables,  # [N, M], rows contiguous
    context_lens,  # [N], contiguous: tokens of each sequence, the chunk's included
    query_start_loc,  # [N + 1], contiguous: chunk n is q[query_start_loc[n] : ...[n + 1]]
    out,  # [T, H, D]
    scale,
    window,
    stride_q_token,
    stride_q_head,
    stride_q_dim,
    stride_k_block,
    stride_k_position,
    stride_k_head,
    stride_k_dim,
    stride_v_block,
    stride_v_position,
    stride_v_head,
    stride_v_dim,
    stride_table,
    stride_out_token,
    stride_out_head,
    stride_out_dim,
    GROUP: tl.constexpr,  # H/G
    BLOCK_SIZE: tl.constexpr,  # P
    HEAD_DIM: tl.constexpr,  # D
    ROWS: tl.constexpr,  # queries a program
    BLOCK_DIM: tl.constexpr,
    TILE: tl.constexpr,
):
    """Program (i, h, n): queries i * ROWS .. (i + 1) * ROWS - 1 of chunk n, head h.

    The chunk's queries are the newest positions of its context. Nothing is read that no query
    of the program sees: positions behind the last one, or before the first one's window.
    """
    ### BEGIN SOLUTION
    head = tl.program_id(1)
    sequence = tl.program_id(2).to(tl.int64)
    start = tl.load(query_start_loc + sequence).to(tl.int64)
    length = tl.load(query_start_loc + sequence + 1) - start
    context = tl.load(context_lens + sequence)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)  # in the chunk
    positions = (context - length + rows).to(tl.int32)  # in the sequence
    dims = tl.arange(0, BLOCK_DIM)
    inside = (rows < length)[:, None] & (dims < HEAD_DIM)[None, :]
    tokens = (start + rows)[:, None]
    places = tokens * stride_q_token + head * stride_q_head + dims[None, :] * stride_q_dim
    queries = tl.load(q + places, mask=inside, other=0.0)

    begin = tl.maximum(tl.min(positions, 0) - window + 1, 0)
    end = tl.minimum(tl.max(positions, 0) + 1, context)
    end = tl.where(tl.program_id(0) * ROWS < length, end, begin)  # chunks differ in length
    _, total, values_sum = attend_range(
        queries, positions, k_cache, v_cache,
        block_tables + sequence * stride_table, head // GROUP, begin, end, scale, window,
        stride_k_block, stride_k_position, stride_k_head, stride_k_dim,
        stride_v_block, stride_v_position, stride_v_head, stride_v_dim,
        BLOCK_SIZE, HEAD_DIM, ROWS, BLOCK_DIM, TILE,
    )  # fmt: skip
    result = values_sum / tl.where(total > 0, total, 1.0)[:, None]
    places = tokens * stride_out_token + head * stride_out_head + dims[None, :] * stride_out_dim
    tl.store(out + places, result, mask=inside)
    ### END SOLUTION


def paged_prefill(
    q: Float[Tensor, "T H D"],
    k_cache: Float[Tensor, "B P G D"],
    v_cache: Float[Tensor, "B P G D"],
    block_tables: Int[Tensor, "N M"],
    context_lens: Int[Tensor, "N"],
    query_start_loc: Int[Tensor, "N+1"],
    max_query_len: int,
    scale: float | None = None,
    window: int | None = None,
    out: Float[Tensor, "T H D"] | None = None,
    rows: int = 64,
    tile: int | None = None,
) -> Float[Tensor, "T H D"]:
    """Each chunk's queries over its own blocks, causal; `rows` queries a program.

    >>> q = torch.ones(2, 1, 1)  # the last two tokens of a context of 3
    >>> k = torch.zeros(2, 2, 1, 1)  # all keys alike: the mean of the visible values
    >>> v = torch.tensor([[8.0, 0.0], [1.0, 3.0]]).view(2, 2, 1, 1)
    >>> table, context = torch.tensor([[1, 0]]), torch.tensor([3])
    >>> paged_prefill(q, k, v, table, context, torch.tensor([0, 2]), 2).flatten()
    tensor([2., 4.])
    """
    out = torch.empty_like(q) if out is None else out
    _, num_heads, dim = q.shape
    block_size, num_kv_heads = k_cache.shape[1:3]
    rows = max(SMALLEST, min(rows, triton.next_power_of_2(max_query_len)))
    launch(
        paged_prefill_kernel,
        (triton.cdiv(max_query_len, rows), num_heads, len(context_lens)),
        q,
        k_cache,
        v_cache,
        block_tables,
        context_lens,
        query_start_loc,
        out,
        dim**-0.5 if scale is None else scale,
        NO_WINDOW if window is None else window,
        *q.stride(),
        *k_cache.stride(),
        *v_cache.stride(),
        block_tables.stride(0),
        *out.stride(),
        GROUP=num_heads // num_kv_heads,
        BLOCK_SIZE=block_size,
        HEAD_DIM=dim,
        ROWS=rows,
        BLOCK_DIM=max(SMALLEST, triton.next_power_of_2(dim)),
        TILE=tile or tile_for(k_cache),
    )
    return out
