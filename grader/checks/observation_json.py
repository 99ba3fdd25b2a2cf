"""Observations as plain JSON, and back: the only form in which they leave the sandbox.

Only data can cross: an object with a clever `__eq__`, a Tensor subclass or a number that is not
one arrives as what it holds, or as the bare name of its type.
"""

from __future__ import annotations

import base64
import enum
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

DEPTH = 40
FLUKES = 8


class WireError(ValueError):
    """Data that cannot be an observation."""


def encode(value: Any, depth: int = 0) -> Any:
    """JSON for a number, text, array, tensor, or a list, mapping or dataclass of these."""
    import torch

    if depth > DEPTH:
        raise WireError("the observation is nested too deeply")
    if isinstance(value, enum.Enum):
        return encode(value.value, depth + 1)
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        value = value.item()  # a number, wherever it comes from
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, torch.Tensor):
        return _tensor(value.detach().cpu().as_subclass(torch.Tensor))
    if isinstance(value, np.ndarray | np.generic):
        return _array(np.asarray(value).view(np.ndarray))
    if isinstance(value, float):
        return {"float": float.hex(float(value))}
    if isinstance(value, bytes | bytearray):
        return {"bytes": base64.b64encode(bytes(value)).decode()}
    if is_dataclass(value) and not isinstance(value, type):
        pairs = [(field.name, getattr(value, field.name)) for field in fields(value)]
        return {"map": [[name, encode(item, depth + 1)] for name, item in pairs]}
    if isinstance(value, Mapping):
        return {"map": [[encode(k, depth + 1), encode(value[k], depth + 1)] for k in value]}
    if isinstance(value, list | tuple):
        return [encode(item, depth + 1) for item in value]
    if isinstance(value, set | frozenset):
        return {"set": sorted((encode(item, depth + 1) for item in value), key=repr)}
    return {"other": type(value).__name__[:100]}


def decode(data: Any) -> Any:
    """The observation back; WireError for anything that `encode` does not make."""
    try:
        return _decode(data)
    except WireError:
        raise
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
        raise WireError(f"not an observation: {type(error).__name__}") from None


def _decode(data: Any) -> Any:
    if data is None or isinstance(data, bool | int | str):
        return data
    if isinstance(data, list):
        return [_decode(item) for item in data]
    if not isinstance(data, dict) or not data:
        raise WireError("not an observation")
    kind = next(iter(data))
    if kind == "float":
        return float.fromhex(data["float"])
    if kind == "bytes":
        return base64.b64decode(data["bytes"], validate=True)
    if kind == "map":
        return _mapping(data["map"])
    if kind == "set":
        return {"a set of": [_decode(item) for item in data["set"]]}
    if kind == "array":
        return _raw(data["raw"], _dtype(data["array"]), data["shape"])
    if kind == "tensor":
        import torch

        if data["tensor"] == "bfloat16":
            raw = _raw(data["raw"], np.dtype("int16"), data["shape"])
            return torch.from_numpy(raw).view(torch.bfloat16)
        return torch.from_numpy(_raw(data["raw"], _dtype(data["tensor"]), data["shape"]))
    if kind == "other":
        return {"an object of type": str(data["other"])}
    raise WireError(f"unknown kind {kind[:20]!r}")


def _mapping(pairs: list) -> dict[Any, Any]:
    """Keys of one hash value, easily made of numbers, would take time with their number squared."""
    keys = [_key(key) for key, _ in pairs]
    if len({hash(key) for key in keys}) < len(keys) - FLUKES:
        raise WireError("a mapping with keys that collide")
    return {key: _decode(item) for key, (_, item) in zip(keys, pairs, strict=True)}


def _key(data: Any) -> Any:
    key = _decode(data)
    return tuple(key) if isinstance(key, list) else key


def _tensor(value: Any) -> dict[str, Any]:
    import torch

    value = value.resolve_conj().resolve_neg().contiguous()
    name = str(value.dtype).removeprefix("torch.")
    plain = value.view(torch.int16) if value.dtype is torch.bfloat16 else value
    return {"tensor": name, **_bytes(plain.numpy())}


def _array(value: np.ndarray) -> dict[str, Any]:
    if value.dtype.kind not in "biufc":
        return {"other": f"array of {value.dtype}"[:100]}
    return {"array": str(value.dtype), **_bytes(value)}


def _bytes(value: np.ndarray) -> dict[str, Any]:
    raw = np.ascontiguousarray(value).tobytes()
    return {"shape": list(value.shape), "raw": base64.b64encode(raw).decode()}


def _dtype(name: Any) -> np.dtype:
    """numpy reads whole tables of fields in a name; reading a long one takes all memory."""
    if not isinstance(name, str) or len(name) > len("complex128"):
        raise WireError(f"no type of number: {str(name)[:20]}")
    return np.dtype(name)


def _raw(text: str, dtype: np.dtype, shape: list[int]) -> np.ndarray:
    if dtype.kind not in "biufc":
        raise WireError(f"no array of {dtype}")
    return np.frombuffer(base64.b64decode(text, validate=True), dtype).reshape(shape).copy()
