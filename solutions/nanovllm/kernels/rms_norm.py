"""The residual add and the RMSNorm behind it in one pass (vLLM's fused_add_rms_norm)."""

import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from nanovllm.kernels.runtime import launch


@triton.jit
def fused_add_rms_norm_kernel(
    x,  # [T, E]
    residual,  # [T, E]
    weight,  # [E], contiguous
    width,  # E
    eps,
    stride_x_token,
    stride_x_dim,
    stride_residual_token,
    stride_residual_dim,
    BLOCK: tl.constexpr,  # a power of 2, at least E
):
    """Program t: residual[t] += x[t], then x[t] = rms_norm(residual[t]) * weight.

    The sum is rounded to the tensors' type before it is normalised, as two separate operations
    would; mean and root are float32.
    """
    ### BEGIN SOLUTION
    token = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, BLOCK)
    inside = dims < width
    x_places = x + token * stride_x_token + dims * stride_x_dim
    residual_places = residual + token * stride_residual_token + dims * stride_residual_dim
    added = tl.load(x_places, mask=inside, other=0.0).to(tl.float32)
    added += tl.load(residual_places, mask=inside, other=0.0).to(tl.float32)
    added = added.to(residual.dtype.element_ty)
    tl.store(residual_places, added, mask=inside)
    total = added.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(total * total, 0) / width + eps)
    gain = tl.load(weight + dims, mask=inside, other=0.0).to(tl.float32)
    tl.store(x_places, total * scale * gain, mask=inside)
    ### END SOLUTION


def fused_add_rms_norm_(
    x: Float[Tensor, "T E"], residual: Float[Tensor, "T E"], weight: Float[Tensor, "E"], eps: float
) -> None:
    """In place: `residual` becomes x + residual, `x` becomes its RMSNorm; any strides.

    >>> import torch
    >>> x, residual = torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, 2.0]])
    >>> fused_add_rms_norm_(x, residual, torch.ones(2), eps=0.0)
    >>> residual, x
    (tensor([[3., 4.]]), tensor([[0.8485, 1.1314]]))
    """
    tokens, width = x.shape
    strides = (*x.stride(), *residual.stride())
    block = triton.next_power_of_2(width)
    launch(
        fused_add_rms_norm_kernel, (tokens,), x, residual, weight, width, eps, *strides, BLOCK=block
    )
