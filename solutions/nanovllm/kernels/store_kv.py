"""Write a step's keys and values into the paged cache (vLLM's reshape_and_cache)."""

import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from nanovllm.kernels.runtime import launch


@triton.jit
def store_kv_kernel(
    k,  # [T, G, D]
    v,  # [T, G, D]
    k_cache,  # [B, P, G, D]
    v_cache,  # [B, P, G, D]
    slot_mapping,  # [T], contiguous
    stride_k_token,
    stride_k_head,
    stride_k_dim,
    stride_v_token,
    stride_v_head,
    stride_v_dim,
    stride_k_cache_block,
    stride_k_cache_position,
    stride_k_cache_head,
    stride_k_cache_dim,
    stride_v_cache_block,
    stride_v_cache_position,
    stride_v_cache_head,
    stride_v_cache_dim,
    BLOCK_SIZE: tl.constexpr,  # P
    NUM_HEADS: tl.constexpr,  # G
    HEAD_DIM: tl.constexpr,  # D
    BLOCK_HEADS: tl.constexpr,  # a power of 2, at least G
    BLOCK_DIM: tl.constexpr,  # a power of 2, at least D
):
    """Program t copies k[t] and v[t] to slot_mapping[t] = block * P + position; -1: nowhere."""
    ### BEGIN SOLUTION
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token).to(tl.int64)
    heads = tl.arange(0, BLOCK_HEADS)[:, None]
    dims = tl.arange(0, BLOCK_DIM)[None, :]
    inside = (heads < NUM_HEADS) & (dims < HEAD_DIM) & (slot >= 0)
    block = slot // BLOCK_SIZE
    position = slot % BLOCK_SIZE

    row = k + token * stride_k_token + heads * stride_k_head + dims * stride_k_dim
    place = k_cache + block * stride_k_cache_block + position * stride_k_cache_position
    place = place + heads * stride_k_cache_head + dims * stride_k_cache_dim
    tl.store(place, tl.load(row, mask=inside), mask=inside)

    row = v + token * stride_v_token + heads * stride_v_head + dims * stride_v_dim
    place = v_cache + block * stride_v_cache_block + position * stride_v_cache_position
    place = place + heads * stride_v_cache_head + dims * stride_v_cache_dim
    tl.store(place, tl.load(row, mask=inside), mask=inside)
    ### END SOLUTION


def store_kv(
    k: Float[Tensor, "T G D"],
    v: Float[Tensor, "T G D"],
    k_cache: Float[Tensor, "B P G D"],
    v_cache: Float[Tensor, "B P G D"],
    slot_mapping: Int[Tensor, "T"],
) -> None:
    """Copy every token's k and v, of any strides, to its slot of the caches; slot -1: nowhere.

    >>> import torch
    >>> cache = torch.zeros(2, 2, 2, 1, 1)  # K and V of 2 blocks of 2 positions
    >>> k = torch.tensor([5.0, 6.0, 7.0]).view(3, 1, 1)
    >>> store_kv(k, -k, cache[0], cache[1], torch.tensor([3, -1, 0]))
    >>> cache.flatten(1).tolist()
    [[7.0, 0.0, 0.0, 5.0], [-7.0, 0.0, 0.0, -5.0]]
    """
    tokens, num_heads, dim = k.shape
    launch(
        store_kv_kernel,
        (tokens,),
        k,
        v,
        k_cache,
        v_cache,
        slot_mapping,
        *k.stride(),
        *v.stride(),
        *k_cache.stride(),
        *v_cache.stride(),
        BLOCK_SIZE=k_cache.shape[1],
        NUM_HEADS=num_heads,
        HEAD_DIM=dim,
        BLOCK_HEADS=triton.next_power_of_2(num_heads),
        BLOCK_DIM=triton.next_power_of_2(dim),
    )
