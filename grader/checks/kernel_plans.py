"""What kernels compute by themselves: planned in one process, run in another.

A scenario calls a lab's host function by `launched`. Where the student's code is, the function gets
tensors whose numbers mean nothing, and starts no kernel: which kernels it would have started, with
which arguments, is its plan. In another process the kernels, taken from the submission's text, run
on the real numbers by this plan. So nothing but a kernel can have computed what comes out.

The real numbers are those that the scenario draws, each times a factor that only the process of the
kernels and that of the reference draw: who plans could look for the others, but cannot know these.
"""

from __future__ import annotations

import importlib
import linecache
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count, islice
from typing import Any

import torch

from grader.checks.kernel_text import BUILTINS

COMPILED_FOR = ((90, "float32", False),)  # an H100; scenarios bring dtypes and sizes of their own
PROGRAMS, LAUNCHES, BYTES = 20_000, 64, 1 << 26  # of one call at most
FIRST, LAST = 1 << 22, 1 << 24  # places of numbers: no other float32 is taken for one, all exact
FACTORS = (0.25, 0.5, 1.0)  # exact in every type
_UNREAD = 12345.0  # in place of what is not a number


class PlanError(ValueError):
    """A plan that cannot be run."""


class Direct:
    """The function as it is; factors: where they are drawn from, None for none."""

    def __init__(self, factors: torch.Generator | None = None) -> None:
        self.factors = factors

    def call(self, name: str, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """The contents of all tensors after a call, and its result."""
        args = [_placed(arg, self.factors) for arg in args]
        options = {key: _placed(value, self.factors) for key, value in options.items()}
        result = _function(name)(*args, **options)
        return _seen((*args, *options.values()), result)


class Planned:
    """Whose plans come out, in place of results."""

    def call(self, name: str, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """The launches of the call, and where its result is."""
        places = count(FIRST)
        hidden = [_without_numbers(arg, places) for arg in args]
        more = {key: _without_numbers(value, places) for key, value in options.items()}
        plan = _Plan([t for t in (*hidden, *more.values()) if torch.is_tensor(t)], next(places))
        assert plan.most < LAST
        function = _function(name)
        with _instead_of_launch(plan.launch):
            result = function(*hidden, **more)
        return {"launches": plan.launches, "new": plan.new,
                "result": plan.place(result) if torch.is_tensor(result) else None}  # fmt: skip


class Replayed:
    """Plans, in the order of the calls, run with the kernels of these modules."""

    def __init__(
        self, plans: Iterator[Any], modules: Mapping[str, Any], folder: str,
        factors: torch.Generator | None = None,
    ) -> None:  # fmt: skip
        self.plans, self.modules, self.factors = plans, load(modules, folder), factors

    def call(self, name: str, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """As Direct, by the next plan."""
        from nanovllm.kernels import runtime

        plan = next(self.plans)
        tensors = [t for t in (*args, *options.values()) if torch.is_tensor(t)]
        given = [_placed(tensor, self.factors) for tensor in tensors]
        pool = [_whole(t) for t in given]
        known = [memory for memory in pool if memory.dtype == torch.float32]
        numbers = torch.cat([torch.empty(0, device=runtime.DEVICE), *known])
        for size, dtype, whole, copied, fill in plan["new"]:
            pool.append(_fresh(size, dtype, whole, copied, fill, numbers).to(runtime.DEVICE))
        if not 0 < len(plan["launches"]) <= LAUNCHES:
            raise PlanError(f"{len(plan['launches'])} launches")
        for module, kernel, grid, values, constants in plan["launches"]:
            if math.prod(max(int(n), 0) for n in grid) > PROGRAMS or not 1 <= len(grid) <= 3:
                raise PlanError(f"a grid of {grid}")
            function = self.modules.get(module, {}).get(f"kernel {kernel}")
            if function is None:
                raise PlanError(f"there is no kernel {kernel} in {module}.py")
            own = [_view(pool, value) for value in values]
            named = {key: _view(pool, value) for key, value in dict(constants).items()}
            runtime.launch(function, tuple(map(int, grid)), *own, **named)
        result = plan["result"]
        return _seen(given, None if result is None else _view(pool, result))


mode: Direct | Planned | Replayed = Direct()


def launched(name: str, *args: Any, **options: Any) -> Any:
    """Call `module:function` of nanovllm as this process does it: one of the modes."""
    return mode.call(name, args, options)


def load(modules: Mapping[str, Any], folder: str) -> dict[str, dict[str, Any]]:
    """The namespaces of modules as `kernel_text.kernels` gives them, with files in a folder."""
    import triton
    import triton.language as tl

    import nanovllm.kernels.runtime  # noqa: F401  before a kernel is defined: it says who runs it

    safe = {name: __builtins__[name] for name in BUILTINS}  # pyright: ignore[reportIndexIssue]
    spaces: dict[str, dict[str, Any]] = {}
    for name, module in modules.items():
        space = spaces[name] = {"__builtins__": safe, "__name__": f"kernels_of_{name}"}
        space |= {"_jit": triton.jit, "constexpr": tl.constexpr}
        for word, meant in module["names"].items():
            where, _, attribute = meant.partition(":")
            value = importlib.import_module(where) if where in _MODULES else None
            space[word] = getattr(value, attribute, None) if attribute else value
        path = f"{folder}/{space['__name__']}.py"
        with open(path, "w", encoding="utf-8") as file:  # Triton reads a kernel's own lines
            file.write(module["text"])
        linecache.checkcache(path)
        with suppress(Exception):  # it cannot be imported either; the others' kernels may run
            exec(compile(module["text"], path, "exec", dont_inherit=True), space)
        jitted = {f"kernel {k}": v for k, v in space.items() if hasattr(v, "fn")}
        space |= jitted
    for name, module in modules.items():
        for word, (where, there) in module["linked"].items():
            if there in spaces.get(where, {}):
                spaces[name].setdefault(word, spaces[where][there])
    return spaces


_MODULES = ("triton", "triton.language", "math")


class _Plan:
    """Launches as data: tensors by the memory that they are in."""

    def __init__(self, tensors: Sequence[torch.Tensor], most: int) -> None:
        self.launches: list[Any] = []
        # Elements, dtype, whole numbers, which places were copied, and what else it is full of.
        self.new: list[Any] = []
        self.most = most
        self._kept = list(tensors)
        self._known = [t.untyped_storage().data_ptr() for t in tensors]

    def launch(self, kernel: Any, grid: Any, *args: Any, **constants: Any) -> None:
        """In place of runtime.launch."""
        grid = grid(constants) if callable(grid) else grid
        function = kernel.fn
        self.launches.append([
            function.__module__.rpartition(".")[2], function.__name__, [int(n) for n in grid],
            [self.place(arg) for arg in args],
            [[key, self.place(value)] for key, value in constants.items()],
        ])  # fmt: skip

    def place(self, value: Any) -> Any:
        """A number as it is; of a tensor where it is, its shape, strides and dtype."""
        if not torch.is_tensor(value):
            if value is None or isinstance(value, bool | int | float | str):
                return ["number", value]
            return ["number", int(value)] if hasattr(value, "__index__") else ["dtype", str(value)]
        storage = value.untyped_storage()
        if storage.data_ptr() not in self._known:
            flat = _whole(value)
            whole = flat if not value.is_floating_point() else None
            copied = fill = None
            if value.is_floating_point():
                is_place = (flat >= FIRST) & (flat < self.most) & (flat == flat.floor())
                is_place &= value.dtype == torch.float32
                if is_place.any():
                    copied = torch.where(is_place, flat - FIRST, -1).long()
                rest = flat[~is_place]
                fill = rest[0].item() if len(rest) and (rest == rest[0]).all() else None
            self.new.append([len(flat), str(value.dtype), whole, copied, fill])
            self._known.append(storage.data_ptr())
            self._kept.append(value)  # or another one could have its address
        index = self._known.index(storage.data_ptr())
        return ["tensor", index, value.storage_offset(), list(value.shape), list(value.stride()),
                str(value.dtype)]  # fmt: skip


def _function(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(f"nanovllm.{module}"), function)


def _instead_of_launch(launch: Any) -> Any:
    """A context in which every module of the package starts kernels by this function."""
    from unittest.mock import patch

    from nanovllm.kernels import runtime

    class Context:
        def __enter__(self) -> None:
            self.patches = [
                patch.object(module, name, launch)
                for key, module in list(sys.modules.items())
                if key.startswith("nanovllm.")
                for name, value in list(vars(module).items())
                if value is runtime.launch
            ]
            for one in self.patches:
                one.start()

        def __exit__(self, *_: object) -> None:
            for one in self.patches:
                one.stop()

    return Context()


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of the memory that a tensor is a part of."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    return torch.as_strided(tensor.detach(), (count,), (1,), 0)


def _placed(value: Any, factors: torch.Generator | None) -> Any:
    """A tensor where kernels run, alone in its memory, numbers times factors; all else as it is."""
    if not torch.is_tensor(value):
        return value
    from nanovllm.kernels.runtime import DEVICE

    memory = _whole(value).clone()
    if factors is not None and memory.is_floating_point():
        drawn = torch.randint(len(FACTORS), memory.shape, generator=factors)
        memory *= torch.tensor(FACTORS, dtype=memory.dtype)[drawn].to(memory.device)
    memory = memory.to(DEVICE)
    return memory.as_strided(value.shape, value.stride(), value.storage_offset())


def _without_numbers(value: Any, places: Iterator[int]) -> Any:
    """A tensor like it, alone in its memory: whole numbers stay, of float32 each is its place
    among all, from FIRST on, so that copies are known; all else is zero."""
    if not torch.is_tensor(value):
        return value
    memory = _whole(value).clone()
    if value.dtype == torch.float32:
        memory.copy_(torch.tensor(list(islice(places, len(memory)))))
    elif value.is_floating_point():
        memory.zero_()
    return memory.as_strided(value.shape, value.stride(), value.storage_offset())


def _fresh(
    size: int, dtype: str, whole: Any, copied: Any, fill: Any, numbers: torch.Tensor
) -> torch.Tensor:
    """A tensor that the host function has made: copies, else one number, else not a number."""
    kind = getattr(torch, dtype.removeprefix("torch."))
    if not 0 <= size * kind.itemsize <= BYTES:
        raise PlanError(f"a tensor of {size} elements")
    if whole is not None and not kind.is_floating_point:
        return torch.as_tensor(whole).to(kind).flatten()
    value = fill if isinstance(fill, int | float) else torch.nan
    made = torch.full((size,), value, dtype=kind, device=numbers.device)
    if copied is not None:
        places = torch.as_tensor(copied).to(numbers.device)
        made[places >= 0] = numbers[places[places >= 0]].to(kind)
    return made


def _view(pool: Sequence[torch.Tensor], value: Any) -> Any:
    """What a place in a plan means."""
    kind, *rest = value
    if kind == "number":
        return rest[0]
    if kind == "dtype":
        import triton.language as tl

        return getattr(tl, str(rest[0]).rpartition(".")[2])
    index, offset, shape, stride, dtype = rest
    memory = pool[index]
    last = offset + sum((n - 1) * s for n, s in zip(shape, stride, strict=True) if n)
    if str(memory.dtype) != dtype or min(offset, *stride, *shape, 0) < 0 or last >= len(memory):
        raise PlanError("a tensor outside of its memory")
    return memory.as_strided(shape, stride, offset)


def _seen(args: Sequence[Any], result: Any) -> dict[str, Any]:
    """What a scenario compares: every tensor's memory, and the result."""
    tensors = [t for t in args if torch.is_tensor(t) and t.is_floating_point()]
    contents = [torch.nan_to_num(_whole(t).cpu().clone(), nan=_UNREAD) for t in tensors]
    return {"memory": contents, "result": result.cpu().clone() if torch.is_tensor(result) else None}
