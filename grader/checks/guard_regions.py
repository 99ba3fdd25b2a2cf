"""Tensors with poison around them: what a kernel reads or writes out of bounds shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grader.checks.expect import expect

MARGIN = 1 << 13  # elements before and behind: a block that runs over stays inside the buffer
ODD = 1000.0  # around what is written: a NaN stored over a NaN would look like no store at all
COUNTED = "in the order in which the check made them, counted in memory from the corner of each"
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Guard:
    """Places tensors into larger buffers; `check` says whether anything beside them was touched.

    Every dimension gets `gap` neighbours on each side, so the views are not contiguous, and padding
    up to a power of 2 reads or writes poison rather than nothing in particular. Poison is NaN
    around what is only read, so that it spreads, and finite around what is written. Whatever a
    check lets a kernel write to belongs in here: out of bounds it would hit the process's memory.
    """

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self.trace: Any = None  # accesses of the kernels run in `watched`; None: not recorded
        # All elements, which of them count, and all elements as they were.
        self._buffers: list[tuple[Tensor, Tensor, Tensor]] = []
        self._names: list[str] = []

    def place(
        self,
        values: Tensor,
        gap: int = 1,
        *,
        order: Sequence[int] | None = None,
        poison: float = torch.nan,
    ) -> Tensor:
        """A view with these values, poison all around it; gap 0: a contiguous one.

        order: the dimensions as they lie in memory, the last one's neighbours closest together.
        """
        order = list(range(values.dim()) if order is None else order)
        shape = [values.shape[dim] for dim in order]
        padded = [size + 2 * gap for size in shape]
        count = 2 * MARGIN + torch.Size(padded).numel()
        buffer = torch.full((count,), poison, dtype=values.dtype, device=self.device)
        inside = torch.zeros(count, dtype=torch.bool, device=self.device)
        middle = tuple(slice(gap, gap + size) for size in shape)
        inside[MARGIN:-MARGIN].view(padded)[middle] = True
        self._buffers.append((buffer, inside, buffer.clone()))
        self._names.append(f"tensor {len(self._buffers)} {list(values.shape)}")
        view = buffer[MARGIN:-MARGIN].view(padded)[middle]
        view = view.permute([order.index(dim) for dim in range(values.dim())])
        return view.copy_(values)

    def empty(
        self,
        *shape: int,
        gap: int = 1,
        dtype: torch.dtype = torch.float32,
        order: Sequence[int] | None = None,
    ) -> Tensor:
        """A view to be written: NaN inside."""
        return self.place(torch.full(shape, torch.nan, dtype=dtype), gap, order=order, poison=ODD)

    @contextmanager
    def watched(self) -> Iterator[Any]:
        """The trace of what kernels inside touch, which `check` judges; compiled ones: None."""
        from nanovllm.kernels.runtime import INTERPRETED
        from nanovllm.kernels.traffic import traced

        if not INTERPRETED:
            yield None
            return
        with traced() as self.trace:
            yield self.trace

    def check(self, call: str, given: dict[str, Any] | None = None) -> None:
        """End the check if anything beside the tensors was written, or, if watched, read."""
        nothing = dict.fromkeys(self._names, "none")
        changed = [
            (_bits(buffer) != _bits(before)) & ~inside for buffer, inside, before in self._buffers
        ]
        expect(
            self._told(places.nonzero()[:, 0].tolist() for places in changed),
            nothing,
            call=f"{call}: elements written beside each tensor, {COUNTED}",
            given=given,
            cause="a store without a mask, or with one that is too wide, or at a wrong address",
        )
        if self.trace is not None:
            expect(
                self._told(self._strays(buffer, inside) for buffer, inside, _ in self._buffers),
                nothing,
                call=f"{call}: elements read beside each tensor, {COUNTED}",
                given=given,
                cause="a load without a mask, or with one that is too wide, or at a wrong address",
            )
            expect(
                self._told(self._contested(buffer) for buffer, *_ in self._buffers),
                nothing,
                call=f"{call}: elements that two programs store, {COUNTED}",
                given=given,
                cause="programs run in any order: each element of a result belongs to one of them",
            )
            expect(
                self._races(),
                {"stored by two": 0, "stored by one, loaded by another": 0},
                call=f"{call}: elements, of scratch memory too, that programs of one launch share",
                given=given,
                cause="programs of a launch run in any order; what one leaves for others needs a "
                "launch of its own",
            )

    def loads(self, view: Tensor) -> int:
        """How many elements of a placed tensor's buffer were loaded while watched."""
        return sum(len(elements) for _, elements in self._loads_of(view))

    def idle_readers(self, *views: Tensor) -> int:
        """How many programs loaded from these placed tensors while watched, but stored nothing."""
        readers = {
            (access.launch, access.program) for v in views for access, _ in self._loads_of(v)
        }
        return len(
            readers
            - {
                (access.launch, access.program)
                for access in self.trace.accesses
                if access.is_store and len(access.addresses)
            }
        )

    def _loads_of(self, view: Tensor) -> Iterator[tuple[Any, np.ndarray]]:
        """Each load from a placed tensor's buffer while watched, with its elements."""
        storage = view.untyped_storage().data_ptr()
        buffer = next(b for b, *_ in self._buffers if b.untyped_storage().data_ptr() == storage)
        for access, elements in self.trace.elements(buffer):
            if not access.is_store:
                yield access, elements

    def _told(self, found: Iterable[list[int]]) -> dict[str, str]:
        """Of each tensor, how many elements were found, and where the first lies."""
        texts = (f"{len(e)}, first at {e[0] - MARGIN}" if e else "none" for e in found)
        return dict(zip(self._names, texts, strict=True))

    def _races(self) -> dict[str, int]:
        """How many elements the programs of one launch do not leave to each other."""
        twice = shared = 0
        for stores, loads in _by_launch(self.trace.accesses):
            numbers: dict[tuple[int, ...], int] = {}
            stored, by = _addresses(stores, numbers)
            if not len(stored):
                continue
            order = np.lexsort((by, stored))
            stored, by = stored[order], by[order]
            again = (stored[1:] == stored[:-1]) & (by[1:] != by[:-1])
            twice += len(np.unique(stored[1:][again]))
            loaded, reader = _addresses(loads, numbers)
            at = np.minimum(np.searchsorted(stored, loaded), len(stored) - 1)
            others = (stored[at] == loaded) & (by[at] != reader)
            shared += len(np.unique(loaded[others]))
        return {"stored by two": twice, "stored by one, loaded by another": shared}

    def _strays(self, buffer: Tensor, inside: Tensor) -> list[int]:
        """The elements that were loaded although they do not count."""
        allowed = inside.numpy()
        found: set[int] = set()
        for access, elements in self.trace.elements(buffer):
            if not access.is_store:
                found.update(elements[~allowed[elements]].tolist())
        return sorted(found)

    def _contested(self, buffer: Tensor) -> list[int]:
        """The elements that more than one program of the same launch stored."""
        owner = np.zeros(len(buffer), dtype=np.int64)  # 0: nobody
        programs: dict[tuple, int] = {}
        found: set[int] = set()
        launch = None
        for access, elements in self.trace.elements(buffer):
            if access.is_store:
                if access.launch != launch:  # launches run one after another
                    launch = access.launch
                    owner[:] = 0
                number = programs.setdefault((launch, access.program), len(programs) + 1)
                before = owner[elements]
                found.update(elements[(before != 0) & (before != number)].tolist())
                owner[elements] = number
        return sorted(found)


def _by_launch(accesses: list[Any]) -> Iterator[tuple[list[Any], list[Any]]]:
    """The stores and the loads of each launch, each with a number of its program."""
    launches: dict[int, tuple[list[Any], list[Any]]] = {}
    for access in accesses:
        stores, loads = launches.setdefault(access.launch, ([], []))
        (stores if access.is_store else loads).append(access)
    yield from launches.values()


def _addresses(accesses: list[Any], numbers: dict) -> tuple[np.ndarray, np.ndarray]:
    """All addresses of some accesses, and the number of the program of each."""
    if not accesses:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    owners = [numbers.setdefault(access.program, len(numbers)) for access in accesses]
    sizes = [len(access.addresses) for access in accesses]
    addresses = np.concatenate([access.addresses.astype(np.int64) for access in accesses])
    return addresses, np.repeat(owners, sizes)


@contextmanager
def dirty_memory() -> Iterator[None]:
    """Inside, what torch.empty gives holds NaN, so that reading what nobody wrote shows."""
    before = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    # torch.use_deterministic_algorithms does this and imports the compiler, which takes seconds.
    torch._C._set_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch._C._set_deterministic_algorithms(before, warn_only=warns)


def _bits(values: Tensor) -> Tensor:
    return values.view(BITS[values.element_size()])
