"""W4A16 in Triton: a weight of 4 bits is unpacked and scaled inside the product."""

import triton
import triton.language as tl
from jaxtyping import Float, Int32, UInt8
from torch import Tensor

from nanovllm.kernels.runtime import launch


### BEGIN SOLUTION
@triton.jit
def w4a16_kernel(
    x, stride_xm, stride_xk, words, stride_wn, stride_wk,
    scales, stride_sn, stride_sg, zeros, stride_zn, stride_zg, group_of, stride_g,
    out, stride_om, stride_on, num_rows, num_outputs, num_inputs,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
):  # fmt: skip
    """Program (i, j): rows i * ROWS .. of x times rows j * OUTPUTS .. of the weight."""
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    outputs = (tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)).to(tl.int64)[:, None]
    total = tl.zeros((ROWS, OUTPUTS), dtype=tl.float32)
    for start in range(0, num_inputs, INPUTS):
        inputs = start + tl.arange(0, INPUTS)
        group = tl.load(group_of + inputs * stride_g, mask=inputs < num_inputs, other=0)[None, :]
        inputs = inputs[None, :]
        here = (outputs < num_outputs) & (inputs < num_inputs)
        scale = tl.load(scales + outputs * stride_sn + group * stride_sg, mask=here, other=0.0)
        zero = tl.load(zeros + outputs * stride_zn + group * stride_zg, mask=here, other=0)
        packed = start // 8 + tl.arange(0, INPUTS // 8)[None, :]
        held = (outputs < num_outputs) & (packed < tl.cdiv(num_inputs, 8))
        word = tl.load(words + outputs * stride_wn + packed * stride_wk, mask=held, other=0)
        codes = (word[:, :, None] >> (4 * tl.arange(0, 8))[None, None, :]) & 15
        codes = tl.reshape(codes, (OUTPUTS, INPUTS))
        weight = (codes - zero.to(tl.int32)).to(tl.float32) * scale.to(tl.float32)
        inside = (rows < num_rows) & (inputs < num_inputs)
        tile = tl.load(x + rows * stride_xm + inputs * stride_xk, mask=inside, other=0.0)
        weight = tl.trans(weight.to(tile.dtype))
        total += tl.dot(tile, weight, input_precision="ieee")
    outputs = tl.trans(outputs)
    place = out + rows * stride_om + outputs * stride_on
    tl.store(place, total, mask=(rows < num_rows) & (outputs < num_outputs))


### END SOLUTION
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
    ### BEGIN SOLUTION
    (rows, inputs), outputs = x.shape, len(words)
    out = x.new_empty(rows, outputs) if out is None else out
    sizes = {"ROWS": max(16, min(64, triton.next_power_of_2(rows))), "OUTPUTS": 32, "INPUTS": 64}
    launch(
        w4a16_kernel, (triton.cdiv(rows, sizes["ROWS"]), triton.cdiv(outputs, 32)),
        x, *x.stride(), words, *words.stride(), scales, *scales.stride(), zeros, *zeros.stride(),
        group_of, group_of.stride(0), out, *out.stride(), rows, outputs, inputs, **sizes,
    )  # fmt: skip
    return out
    ### END SOLUTION
