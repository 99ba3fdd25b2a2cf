"""A small, code-free record of what a check observed, by which a mistake is recognised."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

import numpy as np

from grader.checks.compare import as_array, is_tensor

SAMPLES = 16
RELATIVE = 2e-3
ABSOLUTE = 2e-4
# What an error's message has of this machine and run: folders of a path, addresses, lines of code.
VOLATILE = re.compile(r"(?:\b[A-Za-z]:)?[\\/](?:[^\s'\"\\/]+[\\/])+|\b0x[0-9a-f]+|(?<=\.py):\d+")

Fingerprint = dict[str, Any]


def fingerprint(value: Any) -> Fingerprint:
    """A few rounded numbers, or a hash, that stand for `value`; never the value itself."""
    if isinstance(value, BaseException):
        # where something without an end was stopped (no Exception, `card.DoesNotEnd`) is chance
        said = VOLATILE.sub("", str(value)) if isinstance(value, Exception) else ""
        return {"raises": type(value).__name__, "hash": _hash(said)}
    if is_tensor(value) or isinstance(value, np.ndarray):
        array, name = as_array(value)
        return {"shape": list(array.shape), **_sampled(array, name)}
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    numbers = _numbers(value)
    if numbers is not None and any(isinstance(number, float) for number in numbers):
        array = np.asarray(numbers, dtype=np.float64)
        return {"kind": type(value).__name__, "count": len(numbers), **_sampled(array, "float64")}
    return {"kind": type(value).__name__, "hash": _hash(_stable(value))}


def matches(left: Fingerprint, right: Fingerprint) -> bool:
    """True when both stand for the same observation, up to float noise between machines."""
    if left.keys() != right.keys():
        return False
    return all(
        _close(left[key], right[key]) if key == "values" else left[key] == right[key]
        for key in left
    )


def _sampled(array: np.ndarray, name: str) -> Fingerprint:
    if "float" not in name:
        return {"hash": _hash(repr(array.tolist()))}
    flat = array.reshape(-1).astype(np.float64)
    picks = np.linspace(0, len(flat) - 1, min(SAMPLES, len(flat))).round().astype(int)
    finite = flat[np.isfinite(flat)]
    scale = float(np.abs(finite).max()) if len(finite) else 0.0
    return {"values": [_rounded(number) for number in flat[picks].tolist()] + [_rounded(scale)]}


def _rounded(number: float) -> float | str:
    return float(f"{number:.5g}") if math.isfinite(number) else repr(number)


def _close(left: list, right: list) -> bool:
    if len(left) != len(right):
        return False
    scale = max((abs(x) for x in left if not isinstance(x, str)), default=0.0)
    for a, b in zip(left, right, strict=True):
        if isinstance(a, str) or isinstance(b, str):
            if a != b:
                return False
        elif not math.isclose(a, b, rel_tol=RELATIVE, abs_tol=ABSOLUTE * scale):
            return False
    return True


def _numbers(value: Any) -> list | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float | np.number):
        return [float(value) if isinstance(value, float | np.floating) else int(value)]
    if is_tensor(value):
        return [float(x) for x in as_array(value)[0].reshape(-1)]
    if isinstance(value, Mapping):
        value = list(value.values())
    if not isinstance(value, list | tuple):
        return None
    out: list = []
    for item in value:
        inner = _numbers(item)
        if inner is None:
            return None
        out += inner
    return out


def _stable(value: Any) -> str:
    """A repr without addresses, the same in every process."""
    if isinstance(value, Mapping):
        items = sorted((_stable(k), _stable(v)) for k, v in value.items())
        return "{" + ",".join(f"{k}:{v}" for k, v in items) + "}"
    if isinstance(value, set | frozenset):
        return "{" + ",".join(sorted(_stable(item) for item in value)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_stable(item) for item in value) + "]"
    if is_dataclass(value) and not isinstance(value, type):
        return type(value).__name__ + _stable(asdict(value))
    if is_tensor(value) or isinstance(value, np.ndarray):
        return repr(as_array(value)[0].tolist())
    if isinstance(value, str | bytes | int | float | bool | type(None)):
        return repr(value)
    return type(value).__name__


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
