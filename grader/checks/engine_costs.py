"""What a run of an engine costs, counted where no part of it is out of sight: lab 14's capstone."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

PRODUCTS = {"linear", "matmul", "mm", "addmm", "mv", "addmv", "bmm", "baddbmm", "einsum"}
MAKING = {
    "empty",
    "to",
}  # what `torch.tensor` does with a list of numbers, out of every mode's sight
TO_HOST = ("numpy", "tolist", "__array__", "__dlpack__")


@dataclass(frozen=True)
class Costs:
    """operations: of torch, views not counted; those that the counter did not see, counted too.

    tokens: multiplications with the layers' weights, in tokens that go through all layers. bytes:
    of all tensors that are alive with the engine: weights, store, and what else it keeps. unseen:
    operations that ran behind the counter's back. reads: how often numbers other than integers
    went to the host as arrays or lists.
    """

    operations: int
    tokens: float
    bytes: int
    unseen: int
    reads: int


class Products(TorchDispatchMode):
    """Multiplications with the matrices of a module, and calls of operations, views among them."""

    def __init__(self, layers: torch.nn.Module) -> None:
        super().__init__()
        self.layers, self.multiplications, self.calls = layers, 0.0, 0

    def matrices(self) -> list[torch.Tensor]:
        return [weight for weight in self.layers.parameters() if weight.ndim == 2]

    @property
    def tokens(self) -> float:
        """The multiplications, in tokens that go through all layers."""
        return self.multiplications / sum(weight.numel() for weight in self.matrices())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        self.calls += name not in MAKING
        if name in PRODUCTS:
            factors = [x for x in tree_leaves(args) if torch.is_tensor(x) and x.ndim]
            factors = sorted(factors, key=lambda x: x.ndim > 1)[-2:]  # without a bias
            homes = places(self.matrices())
            if any(x.untyped_storage().data_ptr() in homes for x in factors):
                sizes = [x.numel() for x in (*factors, result)]
                self.multiplications += sqrt(sizes[0] * sizes[1] * sizes[2])  # as m*k, k*n, m*n
        return result


class HostReads:
    """`with HostReads() as reads: ...`, then `reads.total` tensors of floats went to the host."""

    def __enter__(self) -> HostReads:
        self.total, self.methods = 0, {name: getattr(torch.Tensor, name) for name in TO_HOST}
        for name, method in self.methods.items():
            setattr(torch.Tensor, name, self._noting(method))
        return self

    def __exit__(self, *_: object) -> None:
        for name, method in self.methods.items():
            setattr(torch.Tensor, name, method)

    def _noting(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def noted(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self.total += tensor.is_floating_point()
            return method(tensor, *args, **kwargs)

        return noted


def costs(
    make: Callable[[], tuple[Any, torch.nn.Module]],
    run: Callable[[Any], object],
    counting: Callable[[], Any],
) -> Costs:
    """Make an engine and its model's layers, and run it. counting: gives a new `CountOps`."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler tells stderr that it runs
    before = alive()  # kept, so that nothing new has an old one's place
    engine, layers = make()
    everywhere = _ExperimentalConfig(profile_all_threads=True)
    with (
        torch.autograd.profiler.profile(experimental_config=everywhere) as profile,
        HostReads() as reads, counting() as operations, Products(layers) as products,
    ):  # fmt: skip
        run(engine)
    unseen = max(0, _calls(profile) - products.calls)
    old = places(before)
    held = sum(size for place, size in places(alive()).items() if place not in old)
    return Costs(operations.total + unseen, products.tokens, held, unseen, reads.total)


def alive() -> list[torch.Tensor]:
    """All tensors that Python knows of."""
    gc.collect()
    return [x for x in gc.get_objects()
            if issubclass(type(x), torch.Tensor) and x.layout == torch.strided]  # fmt: skip


def places(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """Bytes of each memory in which a tensor is."""
    homes = (tensor.untyped_storage() for tensor in tensors)
    return {home.data_ptr(): home.nbytes() for home in homes}


def different(texts: Iterable[Sequence[int]]) -> int:
    """How many tokens must be computed if what begins alike is computed once."""
    return len({tuple(text[: i + 1]) for text in texts for i in range(len(text))})


def _calls(profile: Any) -> int:
    """Calls of torch's operations that are not inside of another, in all threads."""
    spans = [
        (e.start_thread_id(), e.start_ns(), -e.end_ns(), e.name().removeprefix("aten::") in MAKING)
        for e in profile.kineto_results.events()
        if e.name().startswith("aten::")
    ]
    found, ends = 0, Counter[int]()
    for thread, start, end, making in sorted(spans):
        if start >= ends[thread]:
            ends[thread] = -end
            found += not making
    return found
