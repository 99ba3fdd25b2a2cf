"""Make the rows that lab 09 calibrates on and judges by: `python -m models.held_out`."""

from random import Random

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from . import tokenizer as shared_tokenizer
from .checkpoint import HERE
from .corpus import END_OF_TEXT, Mixture, document
from .rows import encode

ROWS = HERE / "rows.safetensors"
# No training step draws from these seeds.
SEEDS = {"calibration": ("calibration", 24), "held_out": ("held out", 32)}


def rows(tokenizer: PreTrainedTokenizerFast, seed: str, count: int, length: int = 513) -> Tensor:
    """Return rows of documents one after another, int16 [count, length]."""
    rng, end = Random(seed), tokenizer.convert_tokens_to_ids(END_OF_TEXT)
    found = []
    for _ in range(count):
        ids: list[int] = []
        while len(ids) < length:
            ids += [*encode(tokenizer, document(rng, Mixture()))[0], end]
        found.append(ids[:length])
    return torch.tensor(found, dtype=torch.int16)


def main() -> None:
    """Write both kinds of rows beside the models."""
    tokenizer = shared_tokenizer.load()
    save_file({name: rows(tokenizer, *how) for name, how in SEEDS.items()}, ROWS)


if __name__ == "__main__":
    main()
