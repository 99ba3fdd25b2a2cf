"""Rotary positions on queries and keys, in place: no copy of either is ever made."""

import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from nanovllm.kernels.runtime import launch


@triton.jit
def rotate_heads(
    x,  # pointer to one token's heads [num_heads, D]
    num_heads,
    cos,  # [BLOCK_HALF] float32, as is sin
    sin,
    stride_head,
    stride_dim,
    HALF: tl.constexpr,  # D/2
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    """Turn the halves (a, b) of every head into (a cos - b sin, b cos + a sin), in place."""
    raise NotImplementedError("lab06 task 3: rotate_heads")


@triton.jit
def rope_kernel(
    q,  # [T, H, D]
    k,  # [T, G, D]
    cos,  # [T, D/2], as is sin; contiguous
    sin,
    num_heads,
    num_kv_heads,
    stride_q_token,
    stride_q_head,
    stride_q_dim,
    stride_k_token,
    stride_k_head,
    stride_k_dim,
    HALF: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,  # a power of 2, at least H
    BLOCK_HALF: tl.constexpr,  # a power of 2, at least D/2
):
    """Program t reads the angles of token t once, and turns all its query and key heads."""
    raise NotImplementedError("lab06 task 3: rope_kernel")


def rope_(
    q: Float[Tensor, "T H D"],
    k: Float[Tensor, "T G D"],
    cos: Float[Tensor, "T D/2"],
    sin: Float[Tensor, "T D/2"],
) -> None:
    """Rotate q and k of any strides in place, halves paired: (0, D/2), (1, D/2 + 1), ...

    cos and sin are lab 02's `rotation_angles` of the tokens' positions.

    >>> import torch
    >>> q, k = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.0, 2.0]]])
    >>> rope_(q, k, cos=torch.tensor([[0.0]]), sin=torch.tensor([[1.0]]))  # a quarter turn
    >>> q.tolist(), k.tolist()
    ([[[0.0, 1.0]]], [[[-2.0, 0.0]]])
    """
    tokens, num_heads, dim = q.shape
    num_kv_heads, half = k.shape[1], dim // 2
    launch(
        rope_kernel,
        (tokens,),
        q,
        k,
        cos.contiguous(),
        sin.contiguous(),
        num_heads,
        num_kv_heads,
        *q.stride(),
        *k.stride(),
        HALF=half,
        BLOCK_HEADS=triton.next_power_of_2(max(num_heads, num_kv_heads)),
        BLOCK_HALF=triton.next_power_of_2(half),
    )
