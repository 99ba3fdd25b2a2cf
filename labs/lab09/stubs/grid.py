"""The values that the codes of a weight stand for, and a weight as codes (given)."""

from dataclasses import dataclass

from jaxtyping import Float, Int, UInt8
from torch import Tensor


@dataclass(frozen=True)
class Grid:
    """For a weight [N, K] in M groups of columns: code q of column k in row n stands for
    (q - zeros[n, g]) * scales[n, g], where g = group_of[k].

    bits: codes are 0 .. 2**bits - 1. scales: float32, above 0; float16 holds all that the lab makes
    exactly, since checkpoints store them so. zeros: codes themselves, 0 .. 2**bits - 1, too.
    group_of: int32 or int64.
    """

    bits: int
    scales: Float[Tensor, "N M"]
    zeros: UInt8[Tensor, "N M"]
    group_of: Int[Tensor, "K"]

    @property
    def num_codes(self) -> int:
        """How many different codes there are."""
        return 1 << self.bits

    @property
    def symmetric(self) -> bool:
        """Whether every zero point is the middle code, so that none need be stored."""
        return bool((self.zeros == self.num_codes // 2).all())

    @property
    def stored_scales(self) -> Float[Tensor, "N M"]:
        """The scales in float16; as they are where float16 does not hold those of a file."""
        half = self.scales.half()
        return half if bool((half.float() == self.scales).all()) else self.scales

    def column_scales(self) -> Float[Tensor, "N K"]:
        """The scale of each weight."""
        return self.scales[:, self.group_of]

    def column_zeros(self) -> Float[Tensor, "N K"]:
        """The zero point of each weight, as a float."""
        return self.zeros[:, self.group_of].float()


@dataclass(frozen=True)
class QuantizedWeight:
    """A weight [N, K] as codes on a grid.

    >>> import torch
    >>> grid = Grid(2, torch.tensor([[0.5, 2.0]]), torch.tensor([[1, 0]], dtype=torch.uint8),
    ...             torch.tensor([0, 0, 1]))
    >>> QuantizedWeight(torch.tensor([[0, 3, 3]], dtype=torch.uint8), grid).dequantize()
    tensor([[-0.5000,  1.0000,  6.0000]])
    """

    codes: UInt8[Tensor, "N K"]
    grid: Grid

    def dequantize(self) -> Float[Tensor, "N K"]:
        """The weights that the codes stand for, in float32."""
        return (self.codes.float() - self.grid.column_zeros()) * self.grid.column_scales()
