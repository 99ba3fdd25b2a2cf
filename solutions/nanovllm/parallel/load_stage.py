"""From a folder to one rank's stage and slice, and a mark by which ranks compare folders (given)."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from nanovllm.model.loader import load_model
from nanovllm.parallel.communicator import Communicator
from nanovllm.parallel.stages import Stage

SAMPLE = 1 << 16  # bytes at both ends of each file of weights


def load_stage(
    folder: str, group: Communicator, stage: int, num_stages: int, *, dtype: torch.dtype, device: torch.device
) -> Stage:
    model = load_model(folder, dtype, device)
    return Stage(model, stage, num_stages)


def checkpoint_mark(folder: str | Path) -> str:
    """Equal for folders of equal files: their sizes, the config, the ends of the weights.

    Not all bytes: a rank reads its slices only, and this must not cost more than they do.
    """
    mark = hashlib.sha256((Path(folder) / "config.json").read_bytes())
    for path in sorted(Path(folder).glob("*.safetensors")):
        size = path.stat().st_size
        with path.open("rb") as file:
            mark.update(f"{path.name} {size}".encode() + file.read(SAMPLE))
            file.seek(max(0, size - SAMPLE))
            mark.update(file.read(SAMPLE))
    return mark.hexdigest()[:16]
