"""Tensors with poison around them: what a kernel reads or writes out of bounds shows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from grader.expect import expect

MARGIN = 1 << 15  # elements before and behind: a block that runs over stays inside the buffer


class Guard:
    """Places tensors into larger buffers; `check` says whether anything beside them changed.

    Every dimension gets `gap` neighbours on each side, so the views are not contiguous, and padding
    up to a power of 2 reads or writes poison (NaN) rather than nothing in particular. Whatever a
    check lets a kernel write to belongs in here: out of bounds it would hit the process's memory.
    """

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self._buffers: list[tuple[Tensor, Tensor]] = []  # all elements, and which of them count

    def place(self, values: Tensor, gap: int = 1) -> Tensor:
        """A view with these values, poison all around it; gap 0: a contiguous one."""
        padded = [size + 2 * gap for size in values.shape]
        count = 2 * MARGIN + torch.Size(padded).numel()
        buffer = torch.full((count,), torch.nan, dtype=values.dtype, device=self.device)
        inside = torch.zeros(count, dtype=torch.bool, device=self.device)
        middle = tuple(slice(gap, gap + size) for size in values.shape)
        view = buffer[MARGIN:-MARGIN].view(padded)[middle]
        view.copy_(values)
        inside[MARGIN:-MARGIN].view(padded)[middle] = True
        self._buffers.append((buffer, inside))
        return view

    def empty(self, *shape: int, gap: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
        """A view to be written: poison inside, too."""
        return self.place(torch.full(shape, torch.nan, dtype=dtype), gap)

    def check(self, call: str, given: dict[str, Any] | None = None) -> None:
        """End the check if anything beside the tensors has been written."""
        changed = [
            [int(at) - MARGIN for at in (~buffer.isnan() & ~inside).nonzero()[:, 0]]
            for buffer, inside in self._buffers
        ]
        expect(
            [places[:8] for places in changed],
            [[] for _ in changed],
            call=f"{call}: elements written beside each tensor, counted in its buffer",
            given=given,
            cause="a store without a mask, or with one that is too wide, or at a wrong address",
        )
