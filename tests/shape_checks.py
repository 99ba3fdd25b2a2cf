"""A pytest plugin: every shape annotation of the engine is checked at each call.

`pytest -p tests.shape_checks labs/lab02 --reference`. Other annotations are the type checker's
affair: protocols, which are most of them, cannot be checked at run time.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from beartype import beartype
from jaxtyping import Float, install_import_hook

COMPUTED = re.compile(r"\S*\w[-+/*]+\w\S*")  # D/2, k+1, 2*I
_MAKER: Any = type(Float)
_made = _MAKER.__getitem__


def _with_names(kind: Any, given: tuple[Any, str]) -> Any:
    """An axis computed from another is one with a name of its own: jaxtyping knows the other one
    only where an argument before has it."""
    array, axes = given
    return _made(
        kind, (array, COMPUTED.sub(lambda axis: "a_" + re.sub(r"\W+", "_", axis[0]), axes))
    )


def shapes_alone(function: Callable[..., Any]) -> Callable[..., Any]:
    """`beartype`, for arguments and results that say their shape."""
    said = function.__annotations__
    function.__annotations__ = {n: hint for n, hint in said.items() if "[Tensor, " in str(hint)}
    return beartype(function)


_MAKER.__getitem__ = _with_names
with suppress(ImportError):  # not everywhere
    import triton

    _jit = triton.jit
    triton.jit = lambda kernel: _jit(inspect.unwrap(kernel))  # it compiles source, no wrapper
install_import_hook("nanovllm", f"{__name__}.{shapes_alone.__name__}")
