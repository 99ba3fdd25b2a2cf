"""Whether a model folder is complete, told without loading it."""

from __future__ import annotations

import json
import struct
from pathlib import Path

NEEDED = ("config.json", "tokenizer.json")


def weights_problem(folder: Path) -> str:
    """What is wrong with a model folder in Hugging Face format, or the empty string."""
    if not folder.is_dir():
        return "missing"
    for name in NEEDED:
        try:
            json.loads((folder / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return f"{name} is missing"
        except (OSError, ValueError):
            return f"{name} cannot be read"
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return "there are no weights (*.safetensors)"
    return next(filter(None, map(_file_problem, files)), "")


def _file_problem(path: Path) -> str:
    """A safetensors file is 8 bytes of header length, the header, and the bytes it promises."""
    size = path.stat().st_size
    with path.open("rb") as handle:
        first = handle.read(8)
        if first.startswith(b"version "):
            return f"{path.name} is a Git LFS pointer, not the weights (`git lfs pull` gets them)"
        length = struct.unpack("<Q", first)[0] if len(first) == 8 else size
        if length > size - 8:
            return f"{path.name} is cut off at {size} bytes"
        try:
            header = json.loads(handle.read(length))
            ends = [one["data_offsets"][1] for name, one in header.items() if name[:2] != "__"]
        except (ValueError, KeyError, TypeError, AttributeError):
            return f"{path.name} has a damaged header"
    promised = 8 + length + max(ends, default=0)
    return "" if size == promised else f"{path.name} has {size} bytes where {promised} belong"
