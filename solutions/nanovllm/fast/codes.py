"""Quantized weights in the order in which the native step reads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

LONGEST = 512  # columns whose products are added as whole numbers; as in digits.h
Join = Callable[..., Tensor]


@dataclass(frozen=True)
class Codes:
    """A weight [N, K] of (code - zero) * scale, with a scale and a zero for `size` columns each.

    middle: the zero of all, or -1. by_row: codes of 8 bits, one scale a row, to be multiplied with
    codes of 8 bits.
    """

    codes: Tensor  # [N, K] uint8
    scales: Tensor  # [N, M] float32
    zeros: Tensor  # [N, M] uint8
    size: int
    bits: int
    middle: int
    by_row: bool

    @property
    def block(self) -> int:
        """Columns that are multiplied together: a group, or an equal part of it."""
        longest = LONGEST
        if self.size >= self.codes.shape[1]:
            return longest
        return max(b for b in range(8, longest + 1, 8) if self.size % b == 0)

    def packed(self, panel: int) -> Tensor:
        """The bytes that `native/matrix.h` describes."""
        rows, columns = self.codes.shape
        missing = (0, 0, 0, -rows % panel)
        codes = nn.functional.pad(self.codes, missing)
        scales, zeros = (nn.functional.pad(x, missing) for x in (self.scales, self.zeros))
        marks = _integers(scales)
        if self.middle < 0:
            marks = marks & ~255 | zeros
        parts = []
        for start in range(0, columns, self.block):
            some = codes[:, start : start + self.block]
            some = nn.functional.pad(some, (0, -some.shape[1] % (32 // self.bits)))
            some = some.unflatten(1, (-1, 4))  # [., steps, 4]; with 4 bits, twice as many
            if self.bits == 4:
                some = some[:, ::2] | some[:, 1::2] << 4
            parts.append(some.unflatten(0, (-1, panel)).transpose(1, 2))  # [., steps, panel, 4]
            if not self.by_row:
                mark = marks[:, start // self.size].contiguous().view(torch.uint8)
                parts.append(mark.view(-1, 1, panel, 4))
        return torch.cat(parts, dim=1).contiguous()


def codes_of(linears: Sequence[nn.Module], join: Join) -> Codes | None:
    """Of linears that are one matrix to the native step; None if they have no codes that it reads:
    groups are to be of 8 n columns side by side, alike in all of them, and zero points that differ
    need a place in the low byte of the scales (there is one in values of float16 and bfloat16)."""
    found = [codes for linear in linears if (codes := _codes(linear)) is not None]
    if len(found) < len(linears) or len({(each.size, each.by_row) for each in found}) > 1:
        return None
    codes, scales, zeros = (
        join([getattr(each, name) for each in found]) for name in ("codes", "scales", "zeros")
    )
    middles = {each.middle for each in found}
    middle = middles.pop() if len(middles) == 1 else -1  # `join` may have put rows in between
    if middle < 0 and bool((_integers(scales) & 255).any()):
        return None
    bits = max(each.bits for each in found)
    return Codes(codes, scales, zeros, found[0].size, bits, middle, found[0].by_row)


def _codes(linear: Any) -> Codes | None:
    weight = getattr(linear, "weight_codes", None)
    if weight is None:
        return None
    grid = weight.grid
    size = int((grid.group_of == 0).sum())
    in_rows = torch.arange(linear.in_features) // size
    if (size % 8 and size < linear.in_features) or not torch.equal(grid.group_of.long(), in_rows):
        return None
    bits, by_row = 8 if grid.bits > 4 else 4, getattr(linear, "int8_activations", False)
    middle = int(grid.zeros[0, 0]) if bool((grid.zeros == grid.zeros[0, 0]).all()) else -1
    return Codes(weight.codes, grid.scales.float(), grid.zeros, size, bits, middle, by_row)


def _integers(scales: Tensor) -> Tensor:
    return scales.contiguous().view(torch.int32)


def float_weight(linear: Any, dtype: torch.dtype) -> Tensor:
    """The weight [N, K] in floats, whatever it is stored as."""
    return linear.dequantize().to(dtype) if hasattr(linear, "dequantize") else linear.weight
