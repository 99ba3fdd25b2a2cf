"""Attention of chunks of prompts over the paged cache: ragged, causal (FlashAttention-2)."""

import torch
import triton
import triton.language as tl
from torch import Tensor

### BEGIN SOLUTION
from nanovllm.kernels.paged_decode import NO_WINDOW, attend_range, constants
from nanovllm.kernels.runtime import launch


@triton.jit
def paged_prefill_kernel(
    q, stride_qt, stride_qh, stride_qd,
    k_cache, stride_kb, stride_kp, stride_kh, stride_kd,
    v_cache, stride_vb, stride_vp, stride_vh, stride_vd,
    block_tables, stride_table, context_lens, query_start_loc, scale, window,
    out, stride_ot, stride_oh, stride_od,
    GROUP: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Program (i, h, n): queries i * ROWS .. (i + 1) * ROWS - 1 of chunk n, head h."""
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
    places = tokens * stride_qt + head * stride_qh + dims[None, :] * stride_qd
    queries = tl.load(q + places, mask=inside, other=0.0)
    begin = tl.maximum(tl.min(positions, 0) - window + 1, 0)
    end = tl.minimum(tl.max(positions, 0) + 1, context)
    end = tl.where(tl.program_id(0) * ROWS < length, end, begin)  # chunks differ in length
    _, total, values_sum = attend_range(
        queries, positions, begin, end, scale, window,
        block_tables + sequence * stride_table, head // GROUP,
        k_cache, stride_kb, stride_kp, stride_kh, stride_kd,
        v_cache, stride_vb, stride_vp, stride_vh, stride_vd,
        BLOCK_SIZE, HEAD_DIM, ROWS, BLOCK_DIM, TILE,
    )  # fmt: skip
    result = values_sum / tl.where(total > 0, total, 1.0)[:, None]
    places = tokens * stride_ot + head * stride_oh + dims[None, :] * stride_od
    tl.store(out + places, result, mask=inside)


def paged_prefill(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, context_lens: Tensor,
    query_start_loc: Tensor, max_query_len: int, scale: float | None = None,
    window: int | None = None, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Each chunk's queries [T, H, D] over its own blocks, causal; they are the newest positions."""
    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    _, num_heads, dim = q.shape
    rows = max(16, min(64, triton.next_power_of_2(max_query_len)))
    sizes = constants(num_heads // k_cache.shape[2], k_cache) | {"ROWS": rows}
    launch(
        paged_prefill_kernel, (triton.cdiv(max_query_len, rows), num_heads, len(context_lens)),
        q, *q.stride(), k_cache, *k_cache.stride(), v_cache, *v_cache.stride(),
        block_tables, block_tables.stride(0), context_lens, query_start_loc,
        dim**-0.5 if scale is None else scale, NO_WINDOW if window is None else window,
        out, *out.stride(), **sizes,
    )  # fmt: skip
    return out


### END SOLUTION
