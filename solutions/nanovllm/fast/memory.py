"""Memory that the native step reads from end to end: in huge pages, where the system has them.

A step reads more than the caches hold. In pages of 4 KiB the processor also has to look up where
each of them lies, and reads up to a fifth slower. NumPy asks for huge pages for its large arrays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

LINE = 64  # bytes that a processor reads at once: no vector lies in two
CHUNK = 32 << 20  # bytes that an Arena asks for


def untouched(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Zeros that take memory once they are written, as calloc gives them; torch's are written."""
    size = math.prod(shape) * dtype.itemsize
    room = torch.from_numpy(np.zeros(size + LINE, np.uint8))
    start = -room.data_ptr() % LINE
    return room[start : start + size].view(dtype).view(shape)


class Arena:
    """Room for tensors that stay, one behind the other: small ones, too, are in huge pages."""

    def __init__(self) -> None:
        self._room = torch.empty(0, dtype=torch.uint8)

    def copy(self, tensor: Tensor) -> Tensor:
        """The tensor, contiguous and at the beginning of a line.

        >>> Arena().copy(torch.arange(6).view(2, 3).t()).flatten().tolist()
        [0, 3, 1, 4, 2, 5]
        """
        size = tensor.nbytes
        if size > len(self._room):
            self._room = untouched((max(size, CHUNK),), torch.uint8)
        room, self._room = self._room[:size], self._room[-(-size // LINE) * LINE :]
        return room.view(tensor.dtype).view(tensor.shape).copy_(tensor)
