"""Operations, counted where torch sends them: equal on every machine (given)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def name_of(func: Any) -> str:
    """An operation without its overload: `mul` for aten.mul.Tensor."""
    return func.overloadpacket.__name__


def is_view(func: Any, args: Any, result: Any) -> bool:
    """Whether an operation computed nothing: its result lies where an input does, unchanged."""
    if func._schema.is_mutable:
        return False
    results = tree_leaves(result)
    homes = {x.untyped_storage().data_ptr() for x in tree_leaves(args) if torch.is_tensor(x)}
    return bool(results) and all(
        torch.is_tensor(x) and x.untyped_storage().data_ptr() in homes for x in results
    )


class CountOps(TorchDispatchMode):
    """`with CountOps() as ops: ...`, then `ops.total` operations ran, views not counted.

    by_name: how often each ran. tokens: rows that were looked up in an embedding. reads: how often
    the host asked for one value (`.item()`, `int(tensor)`).
    """

    def __init__(self) -> None:
        super().__init__()
        self.by_name: Counter[str] = Counter()
        self.tokens = 0

    @property
    def total(self) -> int:
        return self.by_name.total()

    @property
    def reads(self) -> int:
        return self.by_name["_local_scalar_dense"] + self.by_name["item"]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result, name = func(*args, **(kwargs or {})), name_of(func)
        if name == "embedding":
            self.tokens += args[1].numel()
        if not is_view(func, (args, kwargs), result):
            self.by_name[name] += 1
        return result
