"""Decode attention over the paged cache, one query a sequence (PagedAttention, Kwon 2023)."""

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from nanovllm.kernels.flash import attend_range
from nanovllm.kernels.runtime import launch

NO_WINDOW = 2**30  # more positions than any context has
SMALLEST = 16  # rows and columns that tl.dot wants at least


@triton.jit
def paged_decode_kernel(
    q,  # [N, H, D]
    k_cache,  # [B, P, G, D]
    v_cache,  # [B, P, G, D]
    block_tables,  # [N, M], rows contiguous
    context_lens,  # [N], contiguous
    out,  # [N, H, D]
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
    stride_out_sequence,
    stride_out_head,
    stride_out_dim,
    GROUP: tl.constexpr,  # H/G
    BLOCK_SIZE: tl.constexpr,  # P
    HEAD_DIM: tl.constexpr,  # D
    ROWS: tl.constexpr,  # a power of 2, at least H/G
    BLOCK_DIM: tl.constexpr,  # a power of 2, at least D
    TILE: tl.constexpr,
):
    """Program (n, g): the H/G query heads of sequence n that share key head g, all at once.

    So every key and value is read once. An empty context gives zeros.
    """
    ### BEGIN SOLUTION
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    context = tl.load(context_lens + sequence)
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, BLOCK_DIM)
    inside = (rows < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    heads = head * GROUP + rows
    places = sequence * stride_q_sequence + heads[:, None] * stride_q_head
    queries = tl.load(q + places + dims[None, :] * stride_q_dim, mask=inside, other=0.0)

    _, total, values_sum = attend_range(
        queries, tl.zeros([ROWS], tl.int32) + context - 1, k_cache, v_cache,
        block_tables + sequence * stride_table, head,
        tl.maximum(context - window, 0), context, scale, window,
        stride_k_block, stride_k_position, stride_k_head, stride_k_dim,
        stride_v_block, stride_v_position, stride_v_head, stride_v_dim,
        BLOCK_SIZE, HEAD_DIM, ROWS, BLOCK_DIM, TILE,
    )  # fmt: skip
    result = values_sum / tl.where(total > 0, total, 1.0)[:, None]
    places = sequence * stride_out_sequence + heads[:, None] * stride_out_head
    tl.store(out + places + dims[None, :] * stride_out_dim, result, mask=inside)
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
    tile: int | None = None,
) -> Float[Tensor, "N H D"]:
    """Each query over the first context_lens[n] positions of its blocks, into `out`.

    >>> one = torch.ones(1, 1, 1)  # N, H, D
    >>> k = torch.zeros(2, 2, 1, 1)  # all keys alike: the values' mean
    >>> v = torch.tensor([[8.0, 0.0], [1.0, 3.0]]).view(2, 2, 1, 1)
    >>> table, context = torch.tensor([[1, 0]]), torch.tensor([3])
    >>> paged_decode(one, k, v, table, context).item()  # of 1, 3 and 8
    4.0
    """
    out = torch.empty_like(q) if out is None else out
    num_seqs, num_heads, dim = q.shape
    num_kv_heads = k_cache.shape[2]
    launch(
        paged_decode_kernel,
        (num_seqs, num_kv_heads),
        q,
        k_cache,
        v_cache,
        block_tables,
        context_lens,
        out,
        dim**-0.5 if scale is None else scale,
        NO_WINDOW if window is None else window,
        *q.stride(),
        *k_cache.stride(),
        *v_cache.stride(),
        block_tables.stride(0),
        *out.stride(),
        **constants(num_heads // num_kv_heads, k_cache, tile),
    )
    return out


def constants(group: int, cache: Float[Tensor, "B P G D"], tile: int | None = None) -> dict:
    """The compile-time sizes of the decode kernels; `tile` None: what suits a GPU."""
    _, block_size, _, dim = cache.shape
    return {
        "GROUP": group,
        "BLOCK_SIZE": block_size,
        "HEAD_DIM": dim,
        "ROWS": max(SMALLEST, triton.next_power_of_2(group)),
        "BLOCK_DIM": max(SMALLEST, triton.next_power_of_2(dim)),
        "TILE": tile or tile_for(cache),
    }


def tile_for(cache: Float[Tensor, "B P G D"]) -> int:
    """Positions a tile: K's and V's tiles have to fit into a GPU's shared memory, twice."""
    return 64 if cache.shape[3] * cache.element_size() <= 256 else 32
