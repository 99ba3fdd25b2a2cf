"""The weights of a model folder, to be read in parts (given)."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from nanovllm.model.checkpoint_names import module_tensors
from nanovllm.model.config import ModelConfig
from nanovllm.model.errors import ModelFolderError
from nanovllm.model.loader import (
    check_tensors,
    empty_model,
    read_quantization,
    resolve_folder,
    weight_files,
)
from nanovllm.parallel.errors import ParallelError
from nanovllm.parallel.stored import Reads, StoredTensor

EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
STRIP = 4096  # rows that are compared at a time


class Checkpoint:
    """`Checkpoint(folder)`: the config of a folder or hub name, and its tensors, none read yet.

    `tensors` has a `StoredTensor` for each name of `Transformer(config).state_dict()`, as if it lay
    in the file so: GPT-2's q, k and v are three. `reads.bytes` counts what was read of them.

    Raises:
        ModelFolderError: one sentence on what is wrong with the folder.
        ParallelError: its weights are quantized.

    >>> checkpoint = Checkpoint("models/target")
    >>> q = checkpoint.tensors["layers.0.self_attn.q_proj.weight"]
    >>> q.read(rows=[0, 1]).shape[0], checkpoint.reads.bytes == 2 * q.shape[1] * 2
    (2, True)
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = resolve_folder(folder)
        self.reads = Reads()
        self.config = ModelConfig.from_pretrained(self.folder)
        if read_quantization(self.folder) is not None:
            raise ParallelError(
                f"{self.folder} holds quantized weights, which are not cut over ranks; "
                "choose the unquantized model, or one rank."
            )
        self.tensors = dict(self._stored())
        self._settle_tying()
        check_tensors(self.folder, empty_model(self.config), self.tensors)

    @property
    def fingerprint(self) -> str:
        """Equal on two machines whose folders have the same config, names, shapes and sizes."""
        shapes = sorted((name, tuple(stored.shape)) for name, stored in self.tensors.items())
        sizes = [path.stat().st_size for path in weight_files(self.folder)]
        return hashlib.sha256(repr((self.config, shapes, sizes)).encode()).hexdigest()[:16]

    def _stored(self) -> Iterator[tuple[str, StoredTensor]]:
        for path in weight_files(self.folder):
            try:
                file = safe_open(path, framework="pt")
                slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            except (SafetensorError, OSError) as error:
                raise ModelFolderError(
                    f"{path} is cut short or not a safetensors file ({error}); download it again."
                ) from None
            for name, source in slices.items():
                yield from engine_tensors(self.config.family, name, source, self.reads)

    def _settle_tying(self) -> None:
        """A tied file holds one of the two matrices; with two different ones it is not tied."""
        if not self.config.tie_embeddings or HEAD not in self.tensors:
            return
        embedding, head = self.tensors.setdefault(EMBEDDING, self.tensors[HEAD]), self.tensors[HEAD]
        if _equal(embedding, head):
            del self.tensors[HEAD]
        else:
            self.config = dataclasses.replace(self.config, tie_embeddings=False)
        self.reads.bytes = 0


def engine_tensors(
    family: str, name: str, source: Any, reads: Reads
) -> Iterator[tuple[str, StoredTensor]]:
    """The engine's tensors that one tensor of a file holds.

    Lab 02's `module_tensors` says which, but of tensors in memory. A small tensor of 0, 1, 2, ...
    goes in for the large one: what comes out shows the parts, and whether they are turned.
    """
    shape = source.get_shape()
    sample = torch.arange(12).view(2, 6) if len(shape) == 2 else torch.arange(6)
    for target, part in module_tensors(family, name, sample):
        turned = part.ndim == 2 and bool(part[0, 1] - part[0, 0] != 1)
        in_sample, in_file = (6, shape[-1]) if turned or part.ndim == 1 else (2, shape[0])
        start, num_rows = (
            in_file * count // in_sample for count in (int(part.flatten()[0]), part.shape[0])
        )
        yield target, StoredTensor(source, reads, turned, start, num_rows)


def _equal(one: StoredTensor, other: StoredTensor) -> bool:
    """Whether two matrices hold the same, read a strip at a time."""
    if one.shape != other.shape:
        return False
    strips = (range(at, min(at + STRIP, one.shape[0])) for at in range(0, one.shape[0], STRIP))
    return all(torch.equal(one.read(strip), other.read(strip)) for strip in strips)
