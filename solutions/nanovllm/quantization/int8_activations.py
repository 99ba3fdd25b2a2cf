"""W8A8: weights and activations in int8, multiplied as whole numbers."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int8, Int32
from torch import Tensor

from nanovllm.quantization.grid import Grid, QuantizedWeight
from nanovllm.quantization.int8_on_gpu import padded_int_mm
from nanovllm.quantization.linear import QuantizedLinear


def quantize_tokens(
    x: Float[Tensor, "... K"],
) -> tuple[Int8[Tensor, "... K"], Float[Tensor, "... 1"]]:
    """Every token's vector as codes -128 .. 127 times a float32 scale of its own.

    The scale is the token's largest |x| over 127.5, as for symmetric weights of 8 bits; 1 where
    that is 0 in float32. A code is x over the scale, rounded to the nearest one; in the middle
    between two, where the largest is, it may be either. A token with NaN or an infinity has any
    codes, but a scale that is not finite. What another token is makes no difference.

    >>> codes, scales = quantize_tokens(torch.tensor([[2.0, -4.0, 0.5], [0.0, 0.0, 0.0]]))
    >>> codes.tolist(), scales.flatten().tolist()
    ([[64, -127, 16], [0, 0, 0]], [0.0313725508749485, 1.0])
    """
    ### BEGIN SOLUTION
    scales = x.float().abs().amax(dim=-1, keepdim=True) / 127.5
    scales = torch.where(scales == 0, 1.0, scales)
    return (x.float() / scales).round().clamp(-128, 127).to(torch.int8), scales
    ### END SOLUTION


def int8_matmul(a: Int8[Tensor, "T K"], b: Int8[Tensor, "N K"]) -> Int32[Tensor, "T N"]:
    """a b^T: each entry a sum of K products, exact, in int32. (On a GPU `padded_int_mm` does it.)

    K is 2 or more: `torch._int_mm` on a CPU may be wrong at 1.

    >>> int8_matmul(torch.tensor([[100, 100]]).to(torch.int8), torch.tensor([[100, -128]]).char())
    tensor([[-2800]], dtype=torch.int32)
    """
    ### BEGIN SOLUTION
    return padded_int_mm(a, b) if a.is_cuda else torch._int_mm(a, b.t())  # pyright: ignore[reportPrivateImportUsage]  # it has no public name
    ### END SOLUTION


class Int8Linear(QuantizedLinear):
    """A linear whose weight is int8 by channel and symmetric, and whose input is made int8, too.

    Buffers: codes [N, K] int8 (those of the weight, less 128), scales [N] float16.
    """

    codes: Tensor
    scales: Tensor
    int8_activations = True

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None = None) -> None:
        rows, columns = weight.codes.shape
        super().__init__(columns, rows, bias)
        self.register_buffer("codes", (weight.codes.int() - 128).to(torch.int8))
        self.register_buffer("scales", weight.grid.stored_scales[:, 0])

    @property
    def weight_codes(self) -> QuantizedWeight:
        """The codes and their grid."""
        scales = self.scales.float()[:, None]
        group_of = torch.zeros(self.in_features, dtype=torch.int32, device=scales.device)
        zeros = torch.full_like(scales, 128, dtype=torch.uint8)
        codes = (self.codes.int() + 128).to(torch.uint8)
        return QuantizedWeight(codes, Grid(8, scales, zeros, group_of))

    def dequantize(self) -> Float[Tensor, "N K"]:
        return self.codes * self.scales.float()[:, None]

    @property
    def stored_bits(self) -> int:
        """8 a code, 16 a scale."""
        return 8 * self.codes.numel() + 16 * self.scales.numel()

    def forward(self, x: Float[Tensor, "... K"]) -> Float[Tensor, "... N"]:
        """x in codes times the weight's codes, summed in int32; then both scales and the bias, in
        float32, and one rounding to x's dtype."""
        ### BEGIN SOLUTION
        codes, scales = quantize_tokens(x.reshape(-1, self.in_features))
        out = int8_matmul(codes, self.codes) * scales * self.scales.float()
        if self.bias is not None:
            out = out + self.bias.float()
        return out.to(x.dtype).reshape(*x.shape[:-1], self.out_features)
        ### END SOLUTION
