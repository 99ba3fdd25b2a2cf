"""What operations read and write, counted: of kernels in the interpreter, and of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nanovllm.kernels.runtime import INTERPRETED, Access, observers


@dataclass
class Trace:
    """All accesses of the kernels that were launched, in order."""

    accesses: list[Access] = field(default_factory=list)

    @property
    def bytes_read(self) -> int:
        return sum(access.nbytes for access in self.accesses if not access.is_store)

    @property
    def bytes_written(self) -> int:
        return sum(access.nbytes for access in self.accesses if access.is_store)

    @property
    def nbytes(self) -> int:
        """Bytes read and written."""
        return self.bytes_read + self.bytes_written

    def elements(self, tensor: Tensor) -> Iterator[tuple[Access, np.ndarray]]:
        """Each access to a contiguous tensor, with the numbers of the elements touched."""
        first = tensor.data_ptr()
        for access in self.accesses:
            offsets = access.addresses.astype(np.int64) - first
            inside = offsets[(offsets >= 0) & (offsets < tensor.nbytes)]
            if len(inside):
                yield access, inside // tensor.element_size()


@contextmanager
def traced() -> Iterator[Trace]:
    """Record what every kernel launched inside reads and writes; in the interpreter alone.

    >>> from nanovllm.kernels.add import add
    >>> x = torch.ones(100)
    >>> with traced() as trace:
    ...     _ = add(x, x, block=64)
    >>> trace.bytes_read, trace.bytes_written
    (800, 400)
    """
    if not INTERPRETED:
        raise RuntimeError(
            "Traffic is counted in Triton's interpreter, but kernels are compiled here; run again "
            "with TRITON_INTERPRET=1 in the environment."
        )
    trace = Trace()
    observers.append(trace.accesses.append)
    try:
        yield trace
    finally:
        observers.remove(trace.accesses.append)


def torch_bytes(function: Callable[[], object]) -> int:
    """Bytes that torch's operations inside `function` read and write, each input and output once.

    >>> x = torch.ones(100)
    >>> torch_bytes(lambda: x + x * x)  # two operations: 2 in and 1 out each; x * x twice in
    2400
    """
    with _Counting() as counting:
        function()
    return counting.nbytes


class _Counting(TorchDispatchMode):
    """Adds up the tensors of every operation that is more than a view."""

    nbytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            leaves = tree_leaves((args, kwargs, result))
            self.nbytes += sum(
                leaf.numel() * leaf.element_size() for leaf in leaves if torch.is_tensor(leaf)
            )
        return result
