"""The gate of the MLP: silu(gate) * up, read from one fused projection (vLLM's SiluAndMul)."""

import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from nanovllm.kernels.runtime import launch


### BEGIN SOLUTION
@triton.jit
def silu_and_mul_kernel(
    gate_up, stride_in_token, stride_in_dim, out, stride_out_token, stride_out_dim,
    width, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (t, j): columns j * BLOCK .. (j + 1) * BLOCK - 1 of token t."""
    token = tl.program_id(0).to(tl.int64)
    dims = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = dims < width
    row = gate_up + token * stride_in_token
    gate = tl.load(row + dims * stride_in_dim, mask=inside).to(tl.float32)
    up = tl.load(row + (width + dims) * stride_in_dim, mask=inside).to(tl.float32)
    places = out + token * stride_out_token + dims * stride_out_dim
    tl.store(places, gate * tl.sigmoid(gate) * up, mask=inside)


### END SOLUTION
def silu_and_mul(
    gate_up: Float[Tensor, "T 2*I"], out: Float[Tensor, "T I"] | None = None, block: int = 1024
) -> Float[Tensor, "T I"]:
    """silu(gate) * up of a fused projection of any strides, into `out` (new by default).

    The gate is columns 0 .. I - 1, up the I behind them. `block`, a power of 2: no program
    writes more columns than that, in one row or in several. The arithmetic is float32.

    >>> import torch
    >>> silu_and_mul(torch.tensor([[0.0, 100.0, 7.0, 3.0]]))
    tensor([[  0., 300.]])
    """
    ### BEGIN SOLUTION
    tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(tokens, width) if out is None else out
    block = min(block, triton.next_power_of_2(width))  # pyright: ignore[reportAssignmentType]  # an int
    grid = (tokens, triton.cdiv(width, block))
    arguments = (gate_up, *gate_up.stride(), out, *out.stride(), width)
    launch(silu_and_mul_kernel, grid, *arguments, BLOCK=block)
    return out
    ### END SOLUTION
