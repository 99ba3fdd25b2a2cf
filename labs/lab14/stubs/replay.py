"""CUDA graphs without a GPU: a call's operations, recorded with their tensors and replayed (given).

What a graph cannot see, this does not see either: values that Python read, tensors that were bound
anew. What it refuses, this refuses: a host that waits for a value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from nanovllm.performance.counting import name_of
from nanovllm.performance.errors import PerformanceError

HOST_READS = ("_local_scalar_dense", "item", "nonzero", "masked_select", "unique_consecutive")


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name, kwargs = name_of(func), kwargs or {}
        by_mask = name in ("index", "index_put", "index_put_") and any(
            torch.is_tensor(i) and i.dtype == torch.bool for i in args[1]
        )
        if name in HOST_READS or by_mask:
            raise PerformanceError(
                f"{name} makes the host wait for the device, which a captured graph cannot; "
                "choose operations whose shapes are known beforehand."
            )
        result = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, result))
        return result


def _write(kept: Any, new: Any) -> None:
    """Put what an operation gave into the memory of the capture's own result."""
    if torch.is_tensor(kept):
        if kept.data_ptr() != new.data_ptr():
            kept.copy_(new)
    elif isinstance(kept, list | tuple):
        for one, other in zip(kept, new, strict=True):
            _write(one, other)


def recorded_capture(
    function: Callable[[], None], pool: Any = None
) -> tuple[Callable[[], None], Any]:
    """As `cuda_capture`: run `function` once, and give a replay of its operations on its tensors.

    pool: a list of the sizes of all captures, in their order. Raises PerformanceError where the
    host waits for a value.
    """
    pool = [] if pool is None else pool
    with torch.inference_mode(), _Recorder() as recorder:
        function()
    calls = recorder.calls
    pool.append(len(calls))

    @torch.inference_mode()
    def replay() -> None:
        for func, args, kwargs, kept in calls:
            _write(kept, tree_map(lambda x: x, func(*args, **kwargs)))

    return replay, pool
