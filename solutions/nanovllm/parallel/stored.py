"""A tensor in a file, of which a rank reads only its part (given)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass
class Reads:
    """How many bytes were read."""

    bytes: int = 0


class StoredTensor:
    """A matrix [N, K] or a vector [N] as the engine wants it, wherever it lies in a file.

    `source` is a slice of safetensors, or a tensor. The matrix is the source, or it is the rows
    from `start` on of the source; with `turned`, of the source's transpose. `reads` counts bytes.

    >>> stored = StoredTensor(torch.arange(12).view(4, 3), Reads())
    >>> stored.read(rows=[0, 1, 3], columns=range(2, 3)).tolist(), stored.reads.bytes
    ([[2], [5], [11]], 24)
    """

    def __init__(
        self,
        source: Any,
        reads: Reads,
        turned: bool = False,
        start: int = 0,
        num_rows: int | None = None,
    ) -> None:
        whole = list(source.shape if isinstance(source, Tensor) else source.get_shape())
        whole = whole[::-1] if turned else whole
        self.source, self.reads, self.turned, self.start = source, reads, turned, start
        self.shape = torch.Size([whole[0] if num_rows is None else num_rows, *whole[1:]])

    def read(
        self, rows: Sequence[int] | None = None, columns: Sequence[int] | None = None
    ) -> Tensor:
        """These rows and columns, in this order; None means all. A vector has rows only."""
        rows = range(self.shape[0]) if rows is None else rows
        if len(self.shape) == 1:
            return _joined([self._read(run) for run in _runs(rows)], 0, (0,))
        columns = range(self.shape[1]) if columns is None else columns
        parts = [
            _joined([self._read(run, across) for across in _runs(columns)], 1, (len(run), 0))
            for run in _runs(rows)
        ]
        return _joined(parts, 0, (0, len(columns)))

    def _read(self, rows: range, columns: range | None = None) -> Tensor:
        down = slice(rows.start + self.start, rows.stop + self.start)
        if columns is None:
            found = self.source[down]
        else:
            across = slice(columns.start, columns.stop)
            found = self.source[across, down].T if self.turned else self.source[down, across]
        self.reads.bytes += found.nbytes
        return found


def _joined(parts: list[Tensor], dim: int, empty: tuple[int, ...]) -> Tensor:
    return torch.cat(parts, dim) if parts else torch.empty(empty)


def _runs(numbers: Sequence[int]) -> Iterator[range]:
    """The numbers as ranges without gaps, each as long as can be.

    >>> list(_runs([4, 5, 6, 1, 2, 2]))
    [range(4, 7), range(1, 3), range(2, 3)]
    """
    if isinstance(numbers, range) and numbers.step == 1:
        yield from [numbers] if numbers else []
        return
    start = 0
    for end in range(1, len(numbers) + 1):
        if end == len(numbers) or numbers[end] != numbers[end - 1] + 1:
            yield range(numbers[start], numbers[end - 1] + 1)
            start = end
