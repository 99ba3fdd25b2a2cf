"""W4A16 in Triton: a weight of 4 bits is unpacked and scaled inside the product."""

import triton
import triton.language as tl
from jaxtyping import Float, Int32, UInt8
from torch import Tensor

from nanovllm.kernels.runtime import launch


# lab09 task 6: your kernels and helpers for what stands below.


def w4a16(
    x: Float[Tensor, "T K"],
    words: Int32[Tensor, "N W"],
    scales: Float[Tensor, "N M"],
    zeros: UInt8[Tensor, "N M"],
    group_of: Int32[Tensor, "K"],
    out: Float[Tensor, "T N"] | None = None,
) -> Float[Tensor, "T N"]:
    """x w^T for a weight of 4 bits: w[n, k] = (code[n, k] - zeros[n, g]) * scales[n, g], where
    g = group_of[k], and code k of row n stands in word k // 8 as `pack` puts it there.

    For any T from 1 on and any K, N, M; W is K / 8, rounded up; any strides. Scales are float16, or
    float32 as those of some files; they and the zeros may be loaded often. A weight is computed
    in float32 and rounded to x's dtype; products are summed in float32 (not TF32), and the sum is
    rounded to the dtype of `out`, which is x's where no `out` is given. With up to 16 rows of x
    each word is loaded once, and nothing but the result is stored.

    >>> import torch
    >>> x, words = torch.tensor([[1.0, 10.0]]), torch.tensor([[0x53]], dtype=torch.int32)
    >>> scales, zeros = torch.tensor([[0.5]]).half(), torch.tensor([[1]], dtype=torch.uint8)
    >>> w4a16(x, words, scales, zeros, torch.tensor([0, 0], dtype=torch.int32))
    tensor([[21.]])
    """
    raise NotImplementedError("lab09 task 6: w4a16")
