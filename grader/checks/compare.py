"""Compare two values of any kind a check may meet, and say where they first differ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

SHOWN = 3
# (relative, absolute) tolerance by dtype: a few times what reordering float operations changes.
TOLERANCE = {"float64": (1e-9, 1e-11), "float32": (1e-4, 1e-5), "float16": (5e-3, 1e-3)}
BFLOAT16 = (3e-2, 1e-2)


@dataclass(frozen=True)
class Difference:
    """The first positions that differ, and how much of the whole is wrong."""

    lines: tuple[str, ...]
    wrong: int
    total: int


def is_tensor(value: object) -> bool:
    """True for a torch tensor, without importing torch when nobody else has."""
    return type(value).__module__.startswith("torch") and hasattr(value, "detach")


def as_array(value: Any) -> tuple[np.ndarray, str]:
    """A numpy copy of a tensor or array, and the name of its dtype."""
    if is_tensor(value):
        name = str(value.dtype).removeprefix("torch.")
        value = value.detach().cpu()
        return (value.float() if name == "bfloat16" else value).numpy(), name
    array = np.asarray(value)
    return array, str(array.dtype)


def describe(value: Any) -> str:
    """One short line: shape and dtype of an array, else a shortened repr."""
    if is_tensor(value) or isinstance(value, np.ndarray):
        array, name = as_array(value)
        return f"{name} {list(array.shape)}" + (f" = {array}" if array.size <= 4 else "")
    text = repr(value)
    if len(text) <= 100:
        return text
    size = f" ({type(value).__name__} of {len(value)})" if hasattr(value, "__len__") else ""
    return f"{text[:70]} ... {text[-20:]}{size}"


def difference(
    actual: Any, expected: Any, rtol: float | None = None, atol: float | None = None
) -> Difference | None:
    """None when `actual` equals `expected` within the tolerance, else where it differs."""
    if _is_array(expected):
        return _arrays(actual, expected, rtol, atol)
    if is_dataclass(expected) and not isinstance(expected, type):
        if type(actual) is not type(expected):
            return _whole(actual, expected)
        names = [field.name for field in fields(expected)]
        return _items(
            [(f".{n}", getattr(actual, n), getattr(expected, n)) for n in names], rtol, atol
        )
    if isinstance(expected, Mapping):
        return _mappings(actual, expected, rtol, atol)
    if isinstance(expected, str | bytes):
        return _texts(actual, expected)
    if isinstance(expected, Sequence) and not isinstance(expected, range):
        return _sequences(actual, expected, rtol, atol)
    if isinstance(expected, float) and _is_number(actual):
        relative, absolute = _tolerance("float64" if rtol is None else "", rtol, atol)
        close = math.isclose(float(actual), expected, rel_tol=max(relative, 1e-6), abs_tol=absolute)
        both_nan = math.isnan(float(actual)) and math.isnan(expected)
        return None if close or both_nan else _whole(actual, expected)
    return None if _plain_equal(actual, expected) else _whole(actual, expected)


def _plain_equal(actual: Any, expected: Any) -> bool:
    """Equality that an object answering every == with something truthy does not pass."""
    if isinstance(expected, bool | np.bool_):
        return isinstance(actual, bool | np.bool_) and bool(actual) is bool(expected)
    if _is_number(expected):
        if is_tensor(actual) and actual.numel() == 1:
            actual = actual.item()
        return _is_number(actual) and bool(expected == actual)
    return actual is expected or (type(actual) is type(expected) and (expected == actual) is True)


def _is_array(value: object) -> bool:
    return is_tensor(value) or isinstance(value, np.ndarray)


def _is_number(value: Any) -> bool:
    if is_tensor(value):
        return value.numel() == 1
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _whole(actual: Any, expected: Any, where: str = "") -> Difference:
    prefix = f"at {where}: " if where else ""
    return Difference((f"{prefix}got {describe(actual)}, expected {describe(expected)}",), 1, 1)


def _tolerance(name: str, rtol: float | None, atol: float | None) -> tuple[float, float]:
    relative, absolute = BFLOAT16 if name == "bfloat16" else TOLERANCE.get(name, (0.0, 0.0))
    return (relative if rtol is None else rtol), (absolute if atol is None else atol)


def _arrays(
    actual: Any, expected: Any, rtol: float | None, atol: float | None
) -> Difference | None:
    want, want_name = as_array(expected)
    if not _is_array(actual):
        return _whole(actual, expected)
    have, have_name = as_array(actual)
    if have.shape != want.shape:
        line = f"shape: got {list(have.shape)}, expected {list(want.shape)}"
        return Difference((line,), 1, 1)
    floats = "float" in want_name
    if floats != ("float" in have_name) or ("bool" in want_name) != ("bool" in have_name):
        return Difference((f"dtype: got {have_name}, expected {want_name}",), 1, 1)
    if floats:
        # The coarser of the two dtypes decides: a bfloat16 answer to a float32 question is rounded.
        coarse = max((want_name, have_name), key=lambda name: _tolerance(name, None, None)[0])
        relative, absolute = _tolerance(coarse, rtol, atol)
        scale = float(np.nanmax(np.abs(want), where=np.isfinite(want), initial=0.0))
        wrong = ~np.isclose(
            have, want, rtol=relative, atol=absolute + relative * scale * 0.1, equal_nan=True
        )
    else:
        wrong = have != want
    places = np.argwhere(wrong)
    if not len(places):
        return None
    lines = []
    for place in map(tuple, places[:SHOWN]):
        got, due = _numbers(have[place].item(), want[place].item())
        lines.append(f"at {[int(i) for i in place]}: got {got}, expected {due}")
    return Difference(tuple(lines), len(places), want.size)


def _numbers(*values: float) -> list[str]:
    """Numbers that differ, with as many digits as it takes to see it; whole ones with all."""
    short = [f"{v:.6g}" if isinstance(v, float) else str(v) for v in values]
    return short if len({*short}) > 1 else [repr(v) for v in values]


def _texts(actual: Any, expected: str | bytes) -> Difference | None:
    if type(actual) is not type(expected):
        return _whole(actual, expected)
    if actual == expected:
        return None
    start = next(
        (i for i, (a, b) in enumerate(zip(actual, expected, strict=False)) if a != b),
        min(len(actual), len(expected)),
    )
    low = max(0, start - 12)
    line = (
        f"from position {start}: got {actual[low : start + 25]!r}, "
        f"expected {expected[low : start + 25]!r}"
    )
    lengths = f"length: got {len(actual)}, expected {len(expected)}"
    return Difference((line, lengths), 1, 1)


def _sequences(
    actual: Any, expected: Sequence, rtol: float | None, atol: float | None
) -> Difference | None:
    if _is_array(actual):
        actual = actual.tolist()
    elif not isinstance(actual, list | tuple):
        return _whole(actual, expected)
    if len(actual) != len(expected):
        found = _items(_indexed(actual, expected), rtol, atol)
        lines = found.lines if found else ()
        return Difference(
            (f"length: got {len(actual)}, expected {len(expected)}", *lines[:SHOWN]),
            (found.wrong if found else 0) + abs(len(actual) - len(expected)),
            max(len(actual), len(expected)),
        )
    return _items(_indexed(actual, expected), rtol, atol)


def _indexed(actual: Sequence, expected: Sequence) -> list[tuple[str, Any, Any]]:
    return [(f"[{i}]", a, b) for i, (a, b) in enumerate(zip(actual, expected, strict=False))]


def _mappings(
    actual: Any, expected: Mapping, rtol: float | None, atol: float | None
) -> Difference | None:
    if not isinstance(actual, Mapping):
        return _whole(actual, expected)
    missing = [key for key in expected if key not in actual]
    extra = [key for key in actual if key not in expected]
    lines = [f"missing key {key!r}" for key in missing[:SHOWN]]
    lines += [f"unexpected key {key!r}" for key in extra[:SHOWN]]
    shared = [(f"[{key!r}]", actual[key], expected[key]) for key in expected if key in actual]
    found = _items(shared, rtol, atol)
    wrong = len(missing) + len(extra) + (found.wrong if found else 0)
    lines += found.lines if found else ()
    return Difference(tuple(lines[:SHOWN]), wrong, len(expected) + len(extra)) if wrong else None


def _items(
    items: list[tuple[str, Any, Any]], rtol: float | None, atol: float | None
) -> Difference | None:
    lines: list[str] = []
    wrong = 0
    for where, have, want in items:
        found = difference(have, want, rtol, atol)
        if found is None:
            continue
        wrong += 1
        if len(lines) < SHOWN:
            first = found.lines[0]
            lines.append(
                f"at {where}{first[3:]}" if first.startswith("at [") else f"at {where}: {first}"
            )
    return Difference(tuple(lines), wrong, len(items)) if wrong else None
