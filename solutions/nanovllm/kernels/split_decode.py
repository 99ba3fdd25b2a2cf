"""Split-KV decode (Flash-Decoding, Dao et al. 2023): many programs share one long context."""

import torch
import triton
import triton.language as tl
from torch import Tensor

### BEGIN SOLUTION
from nanovllm.kernels.paged_decode import NO_WINDOW, attend_range, constants
from nanovllm.kernels.runtime import launch


def choose_splits(num_programs: int, num_processors: int, max_context_len: int, tile: int) -> int:
    """How many programs share a context: enough to occupy the processors twice, at least 1."""
    wanted = triton.cdiv(2 * num_processors, num_programs)
    return max(1, min(wanted, triton.cdiv(max_context_len, tile)))  # pyright: ignore[reportReturnType]  # an int


@triton.jit
def split_decode_kernel(
    q, stride_qn, stride_qh, stride_qd,
    k_cache, stride_kb, stride_kp, stride_kh, stride_kd,
    v_cache, stride_vb, stride_vp, stride_vh, stride_vd,
    block_tables, stride_table, context_lens, scale, window,
    partial, lse, NUM_HEADS: tl.constexpr, SPLITS: tl.constexpr,
    GROUP: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Program (n, g, s): mean and lse of share s; an empty one has lse -inf and no mean."""
    sequence = tl.program_id(0).to(tl.int64)
    head, split = tl.program_id(1), tl.program_id(2)
    context = tl.load(context_lens + sequence)
    first = tl.maximum(context - window, 0)
    share = tl.cdiv(tl.cdiv(context - first, TILE), SPLITS) * TILE  # whole tiles
    begin = first + split * share
    end = tl.minimum(begin + share, context)
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, BLOCK_DIM)
    inside = (rows < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    heads = head * GROUP + rows
    places = sequence * stride_qn + heads[:, None] * stride_qh
    queries = tl.load(q + places + dims[None, :] * stride_qd, mask=inside, other=0.0)
    maximum, total, values_sum = attend_range(
        queries, tl.zeros([ROWS], tl.int32) + context - 1, begin, end, scale, window,
        block_tables + sequence * stride_table, head,
        k_cache, stride_kb, stride_kp, stride_kh, stride_kd,
        v_cache, stride_vb, stride_vp, stride_vh, stride_vd,
        BLOCK_SIZE, HEAD_DIM, ROWS, BLOCK_DIM, TILE,
    )  # fmt: skip
    places = (sequence * NUM_HEADS + heads) * SPLITS + split
    result = values_sum / tl.where(total > 0, total, 1.0)[:, None]
    to = partial + places[:, None] * HEAD_DIM + dims[None, :]
    tl.store(to, result, mask=inside & (begin < end))
    tl.store(lse + places, maximum + tl.log2(total), mask=rows < GROUP)


@triton.jit
def combine_kernel(
    partial, lse, out, stride_on, stride_oh, stride_od,
    NUM_HEADS: tl.constexpr, SPLITS: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr, BLOCK_DIM: tl.constexpr,
):  # fmt: skip
    """Program (n, h): the mean of the shares, weighted by 2 ** lse; all empty gives zeros."""
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    splits = tl.arange(0, BLOCK_SPLITS)
    dims = tl.arange(0, BLOCK_DIM)
    places = (sequence * NUM_HEADS + head) * SPLITS + splits
    sums = tl.load(lse + places, mask=splits < SPLITS, other=float("-inf"))
    largest = tl.max(sums, 0)
    weight = tl.exp2(sums - tl.where(largest == float("-inf"), 0.0, largest))
    inside = (sums > float("-inf"))[:, None] & (dims < HEAD_DIM)[None, :]
    shares = tl.load(partial + places[:, None] * HEAD_DIM + dims, mask=inside, other=0.0)
    total = tl.sum(weight, 0)
    result = tl.sum(weight[:, None] * shares, 0) / tl.where(total > 0, total, 1.0)
    places = sequence * stride_on + head * stride_oh + dims * stride_od
    tl.store(out + places, result, mask=dims < HEAD_DIM)


def split_decode(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, context_lens: Tensor,
    splits: int, scale: float | None = None, window: int | None = None, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """`paged_decode` [N, H, D] with `splits` programs for each sequence and key head."""
    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    num_seqs, num_heads, dim = q.shape
    partial = q.new_empty((num_seqs, num_heads, splits, dim), dtype=torch.float32)
    lse = q.new_empty((num_seqs, num_heads, splits), dtype=torch.float32)
    sizes = constants(num_heads // k_cache.shape[2], k_cache)
    launch(
        split_decode_kernel, (num_seqs, k_cache.shape[2], splits),
        q, *q.stride(), k_cache, *k_cache.stride(), v_cache, *v_cache.stride(),
        block_tables, block_tables.stride(0), context_lens,
        dim**-0.5 if scale is None else scale, NO_WINDOW if window is None else window,
        partial, lse, NUM_HEADS=num_heads, SPLITS=splits, **sizes,
    )  # fmt: skip
    launch(
        combine_kernel, (num_seqs, num_heads), partial, lse, out, *out.stride(),
        NUM_HEADS=num_heads, SPLITS=splits, HEAD_DIM=dim,
        BLOCK_SPLITS=triton.next_power_of_2(splits), BLOCK_DIM=sizes["BLOCK_DIM"],
    )  # fmt: skip
    return out


### END SOLUTION
