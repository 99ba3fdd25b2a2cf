"""Read a pack that a student handed in, as data: nothing of it is unpacked where it says."""

from __future__ import annotations

import lzma
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from grader.grading.zip_methods import METHODS

MOST_BYTES = 20_000_000
# What reading a damaged, locked or foreign zip raises, whichever method it is packed by.
UNREADABLE = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, IndexError, MemoryError,
    NotImplementedError, OSError, RuntimeError, ValueError, struct.error,
)  # fmt: skip


class PackError(Exception):
    """A file that is no usable pack; the text says why."""


@dataclass(frozen=True)
class Packed:
    """The notebook of a pack, None where it holds none."""

    notebook: bytes | None


def read_pack(path: Path, assignment: str) -> Packed:
    """The notebook in the pack at `path`. Raises PackError for what is no zip, or too large."""
    name = f"{assignment}.ipynb"
    try:
        with zipfile.ZipFile(path) as archive:
            entries = [entry for entry in archive.infolist() if _is(entry.filename, name)]
            if not entries:
                return Packed(None)
            entry = min(entries, key=lambda entry: len(Path(entry.filename).parts))
            if entry.file_size > MOST_BYTES:
                raise PackError(f"{name} in it has {entry.file_size / 1e6:.0f} MB unpacked")
            if entry.compress_type not in METHODS:
                raise PackError(f"{name} in it is packed by a method other than deflate")
            with archive.open(entry) as file:
                data = file.read(MOST_BYTES + 1)  # what the zip says of its sizes may be a lie
    except UNREADABLE as error:
        raise PackError(f"it is no zip that can be read ({error})") from None
    if len(data) > MOST_BYTES:
        raise PackError(f"{name} in it is larger than it says")
    return Packed(data)


def _is(entry: str, name: str) -> bool:
    parts = Path(entry).parts
    return bool(parts) and parts[-1] == name and ".ipynb_checkpoints" not in parts
