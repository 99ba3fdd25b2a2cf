"""Where kernels run: compiled on a GPU if torch sees one, else in Triton's own interpreter.

The interpreter runs every program of a grid in turn, each operation as one numpy call: slow, but
with the same masks, strides and out-of-bounds accesses. TRITON_INTERPRET=1 asks for it on a GPU
machine, too. This module has to be imported before a kernel is defined; the package sees to it.
"""

import importlib
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import torch

try:
    import triton.knobs
except ModuleNotFoundError:
    here = "" if platform.system() == "Linux" else f"; there is none for {platform.system()}"
    raise ImportError(
        f"Triton is not installed{here}. Do lab 06, and task 6 of lab 09, on a Linux machine (no "
        "GPU is needed), where `python -m pip install -r requirements.txt` brings it; all else "
        "works without it."
    ) from None
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.errors import InterpreterError

INTERPRETED = bool(triton.knobs.runtime.interpret) or not torch.cuda.is_available()
DEVICE = "cpu" if INTERPRETED else "cuda"


@dataclass(frozen=True)
class Access:
    """One load or store of one program: the addresses of the elements that it touched."""

    launch: int  # launches are numbered from 0; each is a grid of programs
    program: tuple[int, ...]
    is_store: bool
    addresses: np.ndarray
    itemsize: int

    @property
    def nbytes(self) -> int:
        """Bytes moved; masked elements move nothing."""
        return len(self.addresses) * self.itemsize


launches = count()
observers: list[Callable[[Access], None]] = []  # told of every access in the interpreter


def launch(kernel: Any, grid: tuple[Any, ...], *args: Any, **constants: Any) -> None:
    """Run `kernel[grid](*args, **constants)`: one program for each place of the grid.

    Beyond that: what goes wrong in the interpreter is raised as it is.
    """
    if not INTERPRETED:
        kernel[grid](*args, **constants)
        return
    try:
        # A GPU does not warn of 1/0.
        with _inner_calls_are_cheap(), _watched(args), np.errstate(all="ignore"):
            kernel[grid](*args, **constants)
    except InterpreterError as error:
        raise error.__cause__ or error from None


def _interpret() -> None:
    """Have Triton interpret the kernels that are defined from now on.

    Triton's own `tl.sum`, `tl.max` and the like are kernels, too. torch imports Triton, so they
    were defined before anybody could ask for the interpreter: they are defined anew.
    """
    triton.knobs.runtime.interpret = True
    if not isinstance(tl.standard.cdiv, interpreter.InterpretedFunction):
        for module in (tl.standard, tl.random, tl):
            importlib.reload(module)
    builder: Any = interpreter.InterpreterBuilder  # patched below, against its types
    builder.create_dot = _dot
    builder.cast_impl = _cast
    # Overflow tests of every integer addition take a third of the time; a GPU has none, either.
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(
        sanitize_overflow=False
    )


def _dot(
    builder: interpreter.InterpreterBuilder, a: Any, b: Any, c: Any, *precision: Any
) -> interpreter.TensorHandle:
    """tl.dot of the interpreter, which would multiply bfloat16 (kept as uint16) bit by bit."""
    a, b = (builder.cast_impl(x, tl.float32) if x.dtype == tl.bfloat16 else x for x in (a, b))
    product = np.matmul(a.data, b.data, dtype=c.data.dtype)
    return interpreter.TensorHandle(product + c.data, c.dtype.scalar)


def _cast(_: interpreter.InterpreterBuilder, source: Any, to: Any) -> interpreter.TensorHandle:
    """A conversion of the interpreter, which would cut off where a GPU rounds to bfloat16."""
    data = source.data
    if source.dtype.scalar == tl.bfloat16:  # kept as uint16, the upper half of a float32
        data = (data.astype(np.uint32) << 16).view(np.float32)
    if to.scalar == tl.bfloat16:
        rounded = torch.tensor(data.astype(np.float32)).bfloat16()
        data = rounded.view(torch.int16).numpy().view(np.uint16)
    else:
        data = data.astype(interpreter._get_np_dtype(to))
    return interpreter.TensorHandle(data, to.scalar)


@contextmanager
def _inner_calls_are_cheap() -> Iterator[None]:
    """Patch Triton's language once a launch, not (5 ms) at each `tl.sum` inside every program."""
    scope = interpreter._patch_lang(tl.zeros.fn)  # tl.core; the launch itself patches tl
    function: Any = interpreter.InterpretedFunction
    plain = function.__call__
    function.__call__ = lambda f, *args, **kw: f.rewrite()(*args, **kw)
    try:
        yield
    finally:
        function.__call__ = plain
        scope.restore()


@contextmanager
def _watched(args: tuple) -> Iterator[None]:
    """Tell the observers of every access, and refuse one outside of all tensors' memory.

    It would hit this process's own memory, and end it some time later without a word.
    """
    storages = [arg.untyped_storage() for arg in args if torch.is_tensor(arg)]
    ranges = [(s.data_ptr(), s.data_ptr() + s.nbytes()) for s in storages]
    builder: Any = interpreter.interpreter_builder
    load, store = builder.create_masked_load, builder.create_masked_store
    number = next(launches)

    def watch(pointers: Any, mask: Any, is_store: bool) -> None:
        seen = np.broadcast_to(mask.data, pointers.data.shape).astype(bool)  # may be int8
        addresses = pointers.data[seen]
        program = tuple(int(i) for i in builder.grid_idx)
        outside = np.ones(addresses.shape, dtype=bool)
        for low, high in ranges:
            outside &= (addresses < low) | (addresses >= high)
        if outside.any():
            raise IndexError(
                f"program {program} {'stores' if is_store else 'loads'} {outside.sum()} of "
                f"{outside.size} elements outside of every tensor that the kernel was given"
            )
        itemsize = pointers.get_element_ty().primitive_bitwidth // 8
        for observe in observers:
            observe(Access(number, program, is_store, addresses, itemsize))

    def watched_load(pointers: Any, mask: Any, *rest: Any) -> Any:
        watch(pointers, mask, is_store=False)
        return load(pointers, mask, *rest)

    def watched_store(pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        watch(pointers, mask, is_store=True)
        return store(pointers, value, mask, *rest)

    builder.create_masked_load, builder.create_masked_store = watched_load, watched_store
    try:
        yield
    finally:
        del builder.create_masked_load, builder.create_masked_store


if INTERPRETED:
    _interpret()
