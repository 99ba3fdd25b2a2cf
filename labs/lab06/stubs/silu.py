"""The gate of the MLP: silu(gate) * up, read from one fused projection (vLLM's SiluAndMul)."""

import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from nanovllm.kernels.runtime import launch


# lab06 task 4: your kernels and helpers for what stands below.


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
    raise NotImplementedError("lab06 task 4: silu_and_mul")
