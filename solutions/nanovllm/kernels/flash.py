"""Attention without a score matrix: tiles of keys, one after another (FlashAttention-2, section 3).

Device functions that the three attention kernels share. R: query rows of a program (heads of one
token, or tokens of one head), S: positions of a tile.
"""

import triton
import triton.language as tl


@triton.jit
def gather_tile(
    cache,  # K or V of one layer [B, P, G, D]
    block_table,  # the sequence's row of the block tables
    positions,  # [S] in the sequence
    visible,  # [S] bool: what is not visible is not read, and is 0 in the result
    head,  # key/value head
    stride_block,
    stride_position,
    stride_head,
    stride_dim,
    BLOCK_SIZE: tl.constexpr,  # P
    HEAD_DIM: tl.constexpr,  # D
    BLOCK_DIM: tl.constexpr,
):
    """The keys or values [S, D] of one head at these positions, each from its own block."""
    ### BEGIN SOLUTION
    block = tl.load(block_table + positions // BLOCK_SIZE, mask=visible, other=0).to(tl.int64)
    rows = cache + block * stride_block + positions % BLOCK_SIZE * stride_position
    dims = tl.arange(0, BLOCK_DIM)
    places = rows[:, None] + head * stride_head + dims[None, :] * stride_dim
    return tl.load(places, mask=visible[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)
    ### END SOLUTION


@triton.jit
def online_softmax(
    maximum,  # [R] largest score so far, -inf before the first
    total,  # [R] sum of 2 ** (score - maximum) so far
    values_sum,  # [R, D] sum of 2 ** (score - maximum) * value so far
    scores,  # [R, S] the tile's scores times log2(e), -inf where a row must not look
    values,  # [S, D]
):
    """One tile more: the three running results, rescaled to the new maximum.

    A row that has seen nothing yet keeps maximum -inf and sums of 0; -inf - -inf would be NaN.
    """
    ### BEGIN SOLUTION
    larger = tl.maximum(maximum, tl.max(scores, 1))
    base = tl.where(larger == float("-inf"), 0.0, larger)
    shrink = tl.exp2(maximum - base)
    weights = tl.exp2(scores - base[:, None])
    total = total * shrink + tl.sum(weights, 1)
    product = tl.dot(weights.to(values.dtype), values, input_precision="ieee")
    return larger, total, values_sum * shrink[:, None] + product
    ### END SOLUTION


@triton.jit
def attend_range(
    queries,  # [R, D]
    query_positions,  # [R]: a row sees the positions query_position - window + 1 .. query_position
    k_cache,
    v_cache,
    block_table,
    head,
    begin,  # positions begin .. end - 1 are looked at, no other is read or seen; 0 <= begin
    end,
    scale,
    window,
    stride_k_block,
    stride_k_position,
    stride_k_head,
    stride_k_dim,
    stride_v_block,
    stride_v_position,
    stride_v_head,
    stride_v_dim,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr,  # R
    BLOCK_DIM: tl.constexpr,
    TILE: tl.constexpr,  # S
):
    """maximum [R], total [R] and values_sum [R, D] of `online_softmax` over a range of positions.

    The scale is multiplied by log2(e) = 1.4426950408889634, because exp2 is one instruction.
    """
    ### BEGIN SOLUTION
    maximum = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    values_sum = tl.zeros([ROWS, BLOCK_DIM], tl.float32)
    for start in range(begin, end, TILE):
        positions = start + tl.arange(0, TILE)
        visible = positions < end
        keys = gather_tile(
            k_cache, block_table, positions, visible, head,
            stride_k_block, stride_k_position, stride_k_head, stride_k_dim,
            BLOCK_SIZE, HEAD_DIM, BLOCK_DIM,
        )  # fmt: skip
        values = gather_tile(
            v_cache, block_table, positions, visible, head,
            stride_v_block, stride_v_position, stride_v_head, stride_v_dim,
            BLOCK_SIZE, HEAD_DIM, BLOCK_DIM,
        )  # fmt: skip
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee")
        scores *= scale * 1.4426950408889634
        distance = query_positions[:, None] - positions[None, :]
        seen = visible[None, :] & (distance >= 0) & (distance < window)
        scores = tl.where(seen, scores, float("-inf"))
        maximum, total, values_sum = online_softmax(maximum, total, values_sum, scores, values)
    return maximum, total, values_sum
    ### END SOLUTION
