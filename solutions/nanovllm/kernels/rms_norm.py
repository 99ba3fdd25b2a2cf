"""The residual add and the RMSNorm behind it in one pass (vLLM's fused_add_rms_norm)."""

import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from nanovllm.kernels.runtime import launch


### BEGIN SOLUTION
@triton.jit
def fused_add_rms_norm_kernel(
    x, stride_x_token, stride_x_dim, residual, stride_residual_token, stride_residual_dim,
    weight, stride_weight, width, eps, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program t takes token t: its row stays in registers from the first load to the last store."""
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
    gain = tl.load(weight + dims * stride_weight, mask=inside, other=0.0).to(tl.float32)
    tl.store(x_places, total * scale * gain, mask=inside)


### END SOLUTION
def fused_add_rms_norm_(
    x: Float[Tensor, "T E"], residual: Float[Tensor, "T E"], weight: Float[Tensor, "E"], eps: float
) -> None:
    """In place: `residual` becomes x + residual, `x` becomes its RMSNorm; any strides.

    The sum is rounded to the type of `residual` before it is normalised, as two separate
    operations would. Squares and their mean are float32.

    >>> import torch
    >>> x, residual = torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, 2.0]])
    >>> fused_add_rms_norm_(x, residual, torch.ones(2), eps=0.0)
    >>> residual, x
    (tensor([[3., 4.]]), tensor([[0.8485, 1.1314]]))
    """
    ### BEGIN SOLUTION
    tokens, width = x.shape
    launch(
        fused_add_rms_norm_kernel, (tokens,), x, *x.stride(), residual, *residual.stride(),
        weight, weight.stride(0), width, eps, BLOCK=triton.next_power_of_2(width),
    )  # fmt: skip
    ### END SOLUTION
