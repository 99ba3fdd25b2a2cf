"""Write a step's keys and values into the paged cache (vLLM's reshape_and_cache)."""

import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from nanovllm.kernels.runtime import launch


### BEGIN SOLUTION
@triton.jit
def store_kv_kernel(
    k, stride_kt, stride_kh, stride_kd, v, stride_vt, stride_vh, stride_vd,
    k_cache, stride_kcb, stride_kcp, stride_kch, stride_kcd,
    v_cache, stride_vcb, stride_vcp, stride_vch, stride_vcd,
    slot_mapping, stride_slot, BLOCK_SIZE: tl.constexpr, NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_HEADS: tl.constexpr, BLOCK_DIM: tl.constexpr,
):  # fmt: skip
    """Program t copies k and v of token t to its slot."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token * stride_slot).to(tl.int64)
    block = slot // BLOCK_SIZE
    position = slot % BLOCK_SIZE
    heads = tl.arange(0, BLOCK_HEADS)[:, None]
    dims = tl.arange(0, BLOCK_DIM)[None, :]
    inside = (heads < NUM_HEADS) & (dims < HEAD_DIM) & (slot >= 0)
    row = k + token * stride_kt + heads * stride_kh + dims * stride_kd
    place = k_cache + block * stride_kcb + position * stride_kcp
    place += heads * stride_kch + dims * stride_kcd
    tl.store(place, tl.load(row, mask=inside), mask=inside)
    row = v + token * stride_vt + heads * stride_vh + dims * stride_vd
    place = v_cache + block * stride_vcb + position * stride_vcp
    place += heads * stride_vch + dims * stride_vcd
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

    Slot s is position s % P of block s // P. A token of slot -1 is not read, either.

    >>> import torch
    >>> cache = torch.zeros(2, 2, 2, 1, 1)  # K and V of 2 blocks of 2 positions
    >>> k = torch.tensor([5.0, 6.0, 7.0]).view(3, 1, 1)
    >>> store_kv(k, -k, cache[0], cache[1], torch.tensor([3, -1, 0]))
    >>> cache.flatten(1).tolist()
    [[7.0, 0.0, 0.0, 5.0], [-7.0, 0.0, 0.0, -5.0]]
    """
    ### BEGIN SOLUTION
    tokens, num_heads, dim = k.shape
    launch(
        store_kv_kernel, (tokens,), k, *k.stride(), v, *v.stride(),
        k_cache, *k_cache.stride(), v_cache, *v_cache.stride(), slot_mapping,
        slot_mapping.stride(0), BLOCK_SIZE=k_cache.shape[1], NUM_HEADS=num_heads, HEAD_DIM=dim,
        BLOCK_HEADS=triton.next_power_of_2(num_heads), BLOCK_DIM=triton.next_power_of_2(dim),
    )  # fmt: skip
    ### END SOLUTION
