"""Split-KV decode (Flash-Decoding, Dao et al. 2023): many programs share one long context."""

import math

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from nanovllm.kernels.flash import attend_range
from nanovllm.kernels.paged_decode import NO_WINDOW, constants
from nanovllm.kernels.runtime import launch


def choose_splits(num_programs: int, num_processors: int, max_context_len: int, tile: int) -> int:
    """How many programs share a context: enough to occupy the processors twice, at least 1.

    num_programs is what one split would launch (N x G). No more splits than tiles: a split of
    less than one tile is idle.

    >>> choose_splits(num_programs=8, num_processors=132, max_context_len=8192, tile=64)
    33
    >>> choose_splits(num_programs=8, num_processors=132, max_context_len=100, tile=64)
    2
    """
    ### BEGIN SOLUTION
    wanted = math.ceil(2 * num_processors / num_programs)
    return max(1, min(wanted, math.ceil(max_context_len / tile)))
    ### END SOLUTION


@triton.jit
def split_decode_kernel(
    q,  # [N, H, D]
    k_cache,  # [B, P, G, D]
    v_cache,  # [B, P, G, D]
    block_tables,  # [N, M], rows contiguous
    context_lens,  # [N], contiguous
    partial,  # [N, H, SPLITS, D] float32, contiguous: divided by the share's own total
    lse,  # [N, H, SPLITS] float32, contiguous: log2 of the sum of 2 ** score
    scale,
    window,
    stride_q_sequence,
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
    NUM_HEADS: tl.constexpr,  # H
    SPLITS: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    TILE: tl.constexpr,
):
    """Program (n, g, s): share s of the visible positions, in whole tiles, and its lse.

    A share may be empty: its lse is -inf, and its partial result is not written.
    """
    ### BEGIN SOLUTION
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    split = tl.program_id(2)
    context = tl.load(context_lens + sequence)
    first = tl.maximum(context - window, 0)
    share = tl.cdiv(tl.cdiv(context - first, TILE), SPLITS) * TILE
    begin = first + split * share
    end = tl.minimum(begin + share, context)
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, BLOCK_DIM)
    inside = (rows < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    heads = head * GROUP + rows
    places = sequence * stride_q_sequence + heads[:, None] * stride_q_head
    queries = tl.load(q + places + dims[None, :] * stride_q_dim, mask=inside, other=0.0)

    maximum, total, values_sum = attend_range(
        queries, tl.zeros([ROWS], tl.int32) + context - 1, k_cache, v_cache,
        block_tables + sequence * stride_table, head, begin, end, scale, window,
        stride_k_block, stride_k_position, stride_k_head, stride_k_dim,
        stride_v_block, stride_v_position, stride_v_head, stride_v_dim,
        BLOCK_SIZE, HEAD_DIM, ROWS, BLOCK_DIM, TILE,
    )  # fmt: skip
    some = begin < end
    places = (sequence * NUM_HEADS + heads) * SPLITS + split
    result = values_sum / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(partial + places[:, None] * HEAD_DIM + dims[None, :], result, mask=inside & some)
    tl.store(lse + places, maximum + tl.log2(total), mask=rows < GROUP)
    ### END SOLUTION


@triton.jit
def combine_kernel(
    partial,  # [N, H, SPLITS, D] float32, contiguous; undefined where lse is -inf
    lse,  # [N, H, SPLITS] float32, contiguous
    out,  # [N, H, D]
    num_heads,
    stride_out_sequence,
    stride_out_head,
    stride_out_dim,
    SPLITS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,  # a power of 2, at least SPLITS
    BLOCK_DIM: tl.constexpr,  # a power of 2, at least D
):
    """Program (n, h): the mean of the shares, weighted by 2 ** lse; all empty gives zeros."""
    ### BEGIN SOLUTION
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    splits = tl.arange(0, BLOCK_SPLITS)
    dims = tl.arange(0, BLOCK_DIM)
    places = (sequence * num_heads + head) * SPLITS + splits
    weight = tl.load(lse + places, mask=splits < SPLITS, other=float("-inf"))
    some = weight > float("-inf")
    largest = tl.max(weight, 0)
    weight = tl.exp2(weight - tl.where(largest == float("-inf"), 0.0, largest))
    inside = some[:, None] & (dims < HEAD_DIM)[None, :]
    shares = tl.load(partial + places[:, None] * HEAD_DIM + dims, mask=inside, other=0.0)
    total = tl.sum(weight, 0)
    result = tl.sum(weight[:, None] * shares, 0) / tl.where(total > 0, total, 1.0)
    place = out + sequence * stride_out_sequence + head * stride_out_head
    tl.store(place + dims * stride_out_dim, result, mask=dims < HEAD_DIM)
    ### END SOLUTION


def combine(
    partial: Float[Tensor, "N H S D"],
    lse: Float[Tensor, "N H S"],
    out: Float[Tensor, "N H D"],
) -> Float[Tensor, "N H D"]:
    """Join the shares of each context, weighted by 2 ** lse; lse -inf marks an empty one.

    >>> shares = torch.tensor([1.0, 4.0, float("nan")]).view(1, 1, 3, 1)
    >>> lse = torch.tensor([0.0, 1.0, float("-inf")]).view(1, 1, 3)
    >>> combine(shares, lse, torch.zeros(1, 1, 1)).item()  # (1 * 1 + 2 * 4) / 3
    3.0
    """
    num_seqs, num_heads, splits, dim = partial.shape
    launch(
        combine_kernel,
        (num_seqs, num_heads),
        partial,
        lse,
        out,
        num_heads,
        *out.stride(),
        SPLITS=splits,
        HEAD_DIM=dim,
        BLOCK_SPLITS=triton.next_power_of_2(splits),
        BLOCK_DIM=triton.next_power_of_2(dim),
    )
    return out


def split_decode(
    q: Float[Tensor, "N H D"],
    k_cache: Float[Tensor, "B P G D"],
    v_cache: Float[Tensor, "B P G D"],
    block_tables: Int[Tensor, "N M"],
    context_lens: Int[Tensor, "N"],
    splits: int,
    scale: float | None = None,
    window: int | None = None,
    out: Float[Tensor, "N H D"] | None = None,
    tile: int | None = None,
    scratch: tuple[Float[Tensor, "N H S D"], Float[Tensor, "N H S"]] | None = None,
) -> Float[Tensor, "N H D"]:
    """`paged_decode` with `splits` programs for each (n, g); `scratch`: float32, new by default."""
    out = torch.empty_like(q) if out is None else out
    num_seqs, num_heads, dim = q.shape
    num_kv_heads = k_cache.shape[2]
    if scratch is None:
        shapes = ((num_seqs, num_heads, splits, dim), (num_seqs, num_heads, splits))
        scratch = tuple(q.new_empty(shape, dtype=torch.float32) for shape in shapes)
    launch(
        split_decode_kernel,
        (num_seqs, num_kv_heads, splits),
        q,
        k_cache,
        v_cache,
        block_tables,
        context_lens,
        *scratch,
        dim**-0.5 if scale is None else scale,
        NO_WINDOW if window is None else window,
        *q.stride(),
        *k_cache.stride(),
        *v_cache.stride(),
        block_tables.stride(0),
        NUM_HEADS=num_heads,
        SPLITS=splits,
        **constants(num_heads // num_kv_heads, k_cache, tile),
    )
    return combine(*scratch, out)
