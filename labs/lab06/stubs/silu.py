"""The gate of the MLP: silu(gate) * up, read from one fused projection (vLLM's SiluAndMul)."""

import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from nanovllm.kernels.runtime import launch


@triton.jit
def silu_and_mul_kernel(
    gate_up,  # [T, 2I]: the gate's columns, then the up projection's
    out,  # [T, I]
    width,  # I
    stride_in_token,
    stride_in_dim,
    stride_out_token,
    stride_out_dim,
    BLOCK: tl.constexpr,  # a power of 2: columns a program
):
    """Program (t, j): columns j * BLOCK .. (j + 1) * BLOCK - 1 of token t, in float32."""
    raise NotImplementedError("lab06 task 4: silu_and_mul_kernel")


def silu_and_mul(
    gate_up: Float[Tensor, "T 2*I"], out: Float[Tensor, "T I"] | None = None, block: int = 1024
) -> Float[Tensor, "T I"]:
    """silu(gate) * up of a fused projection of any strides, into `out` (new by default).

    >>> import torch
    >>> silu_and_mul(torch.tensor([[0.0, 100.0, 7.0, 3.0]]))
    tensor([[  0., 300.]])
    """
    tokens, both = gate_up.shape
    width = both // 2
    out = gate_up.new_empty(tokens, width) if out is None else out
    raise NotImplementedError("lab06 task 4: silu_and_mul")
    return out
