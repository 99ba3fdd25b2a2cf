"""Whether the weights that a new engine is about to read are still those of the first one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

PIECE = 1 << 20  # bytes that are read at once


def checksums(files: Iterable[Path]) -> dict[str, str]:
    """SHA-256 of each file, as hexadecimal digits, by the file's name.

    A file may be larger than the memory: no more than PIECE bytes of it are read at once.
    """
    ### BEGIN SOLUTION
    found = {}
    for path in files:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while piece := file.read(PIECE):
                digest.update(piece)
        found[path.name] = digest.hexdigest()
    return found
    ### END SOLUTION


def changed(kept: Mapping[str, str], folder: Path) -> list[str]:
    """Names of the files of `kept` that are missing in the folder, or have another checksum now;
    sorted. What else lies there is nobody's affair.
    """
    ### BEGIN SOLUTION
    there = [folder / name for name in kept if (folder / name).is_file()]
    now = checksums(there)
    return sorted(name for name, digest in kept.items() if now.get(name) != digest)
    ### END SOLUTION
