"""The smallest kernel: every program adds one block of two vectors."""

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from nanovllm.kernels.runtime import launch


### BEGIN SOLUTION
@triton.jit
def add_kernel(x, y, out, n, stride_x, stride_y, stride_out, BLOCK: tl.constexpr):
    """Program i adds the elements i * BLOCK .. (i + 1) * BLOCK - 1, as far as there are any."""
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = places < n
    a = tl.load(x + places * stride_x, mask=inside).to(tl.float32)
    b = tl.load(y + places * stride_y, mask=inside).to(tl.float32)
    tl.store(out + places * stride_out, a + b, mask=inside)


### END SOLUTION
def add(
    x: Float[Tensor, "n"],
    y: Float[Tensor, "n"],
    out: Float[Tensor, "n"] | None = None,
    block: int = 1024,
) -> Float[Tensor, "n"]:
    """x + y, of any strides, into `out` (new by default); `block` elements a program.

    `block` is a power of 2. The sum is made in float32 and rounded to the type of `out`.

    >>> add(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([10.0, 20.0, 30.0]), block=2)
    tensor([11., 22., 33.])
    """
    ### BEGIN SOLUTION
    out = torch.empty_like(x) if out is None else out
    n = x.shape[0]
    strides = (x.stride(0), y.stride(0), out.stride(0))
    launch(add_kernel, (triton.cdiv(n, block),), x, y, out, n, *strides, BLOCK=block)
    return out
    ### END SOLUTION
