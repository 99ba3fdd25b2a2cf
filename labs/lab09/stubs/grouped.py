"""A linear whose weight is codes on a grid, 2 to 8 bits each (given)."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from nanovllm.quantization.backend import linear_backend
from nanovllm.quantization.grid import Grid, QuantizedWeight
from nanovllm.quantization.linear import QuantizedLinear
from nanovllm.quantization.packing import pack, unpack


class GroupedLinear(QuantizedLinear):
    """Weight-only: codes are kept packed, scales in float16 (in float32 if it does not hold those
    of a file); x is multiplied in its own dtype.

    Buffers: words [N, ceil(K / (32 // bits))] int32, scales [N, M] float16, zeros [N, M] uint8,
    group_of [K] int32.
    """

    words: Tensor
    scales: Tensor
    zeros: Tensor
    group_of: Tensor

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None = None) -> None:
        rows, columns = weight.codes.shape
        super().__init__(columns, rows, bias)
        grid = weight.grid
        self.bits, self.symmetric = grid.bits, grid.symmetric
        self.register_buffer("words", pack(weight.codes, grid.bits))
        self.register_buffer("scales", grid.stored_scales.contiguous())
        self.register_buffer("zeros", grid.zeros.contiguous())
        self.register_buffer("group_of", grid.group_of.int())

    @property
    def weight_codes(self) -> QuantizedWeight:
        """The codes and their grid."""
        codes = unpack(self.words, self.bits, self.in_features)
        return QuantizedWeight(
            codes, Grid(self.bits, self.scales.float(), self.zeros, self.group_of)
        )

    def dequantize(self) -> Float[Tensor, "N K"]:
        return self.weight_codes.dequantize()

    def forward(self, x: Float[Tensor, "... K"]) -> Float[Tensor, "... N"]:
        """Multiply in x's dtype; weights of 4 bits by task 6's kernel where there is a GPU."""
        if self.bits != 4 or linear_backend(x.device) != "triton":
            return super().forward(x)
        from nanovllm.quantization.w4a16 import w4a16  # not before: it imports Triton

        rows = x.reshape(-1, self.in_features)
        out = w4a16(rows, self.words, self.scales, self.zeros, self.group_of)
        out = out.reshape(*x.shape[:-1], self.out_features)
        return out if self.bias is None else out + self.bias

    @property
    def stored_bits(self) -> int:
        """32 a word of codes, 16 a scale, `bits` a zero point unless all are the middle code."""
        zeros = 0 if self.symmetric else self.bits * self.zeros.numel()
        return 32 * self.words.numel() + 8 * self.scales.nbytes + zeros
