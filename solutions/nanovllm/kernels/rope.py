"""Rotary positions on queries and keys, in place: no copy of either is ever made."""

import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from nanovllm.kernels.runtime import launch


### BEGIN SOLUTION
@triton.jit
def rotate_heads(
    x, stride_head, stride_dim, num_heads, cos, sin,
    HALF: tl.constexpr, BLOCK_HEADS: tl.constexpr, BLOCK_HALF: tl.constexpr,
):  # fmt: skip
    """Turn all heads of one token, of which x points to the first; cos and sin [BLOCK_HALF]."""
    heads = tl.arange(0, BLOCK_HEADS)[:, None]
    dims = tl.arange(0, BLOCK_HALF)[None, :]
    inside = (heads < num_heads) & (dims < HALF)
    first = x + heads * stride_head + dims * stride_dim
    second = first + HALF * stride_dim
    a = tl.load(first, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(second, mask=inside, other=0.0).to(tl.float32)
    tl.store(first, a * cos[None, :] - b * sin[None, :], mask=inside)
    tl.store(second, b * cos[None, :] + a * sin[None, :], mask=inside)


@triton.jit
def rope_kernel(
    q, stride_qt, stride_qh, stride_qd, num_heads, k, stride_kt, stride_kh, stride_kd, num_kv_heads,
    cos, sin, HALF: tl.constexpr, BLOCK_HEADS: tl.constexpr, BLOCK_HALF: tl.constexpr,
):  # fmt: skip
    """Program t reads the angles of token t once, and turns all its query and key heads."""
    token = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, BLOCK_HALF)
    c = tl.load(cos + token * HALF + dims, mask=dims < HALF, other=0.0).to(tl.float32)
    s = tl.load(sin + token * HALF + dims, mask=dims < HALF, other=0.0).to(tl.float32)
    q += token * stride_qt
    rotate_heads(q, stride_qh, stride_qd, num_heads, c, s, HALF, BLOCK_HEADS, BLOCK_HALF)
    k += token * stride_kt
    rotate_heads(k, stride_kh, stride_kd, num_kv_heads, c, s, HALF, BLOCK_HEADS, BLOCK_HALF)


### END SOLUTION
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
    ### BEGIN SOLUTION
    tokens, num_heads, dim = q.shape
    num_kv_heads, half = k.shape[1], dim // 2
    launch(
        rope_kernel, (tokens,),
        q, *q.stride(), num_heads, k, *k.stride(), num_kv_heads,
        cos.contiguous(), sin.contiguous(), HALF=half,
        BLOCK_HEADS=triton.next_power_of_2(max(num_heads, num_kv_heads)),
        BLOCK_HALF=triton.next_power_of_2(half),
    )  # fmt: skip
    ### END SOLUTION
