"""Documents packed into rows of tokens, with loss weights and positions."""

from random import Random

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from .corpus import END_OF_TEXT, document
from .corpus.spans import PROSE, Spans
from .recipe import Recipe, Stage

Batch = tuple[Tensor, Tensor, Tensor]


def encode(tokenizer: PreTrainedTokenizerFast, spans: Spans) -> tuple[list[int], list[float]]:
    """Return the tokens of a document and the weight of each."""
    ids: list[int] = []
    weights: list[float] = []
    encodings = tokenizer.backend_tokenizer.encode_batch([span.text for span in spans])
    for span, encoding in zip(spans, encodings):
        ids += encoding.ids
        weights += [span.weight] * len(encoding.ids)
    return ids, weights


def positions_with_skips(rng: Random, length: int, context: int) -> list[int]:
    """Return positions that jump ahead once or twice, so that short rows teach long distances.

    This is positional skip-wise training (Zhu et al. 2023, "PoSE"): rotary attention sees only
    differences of positions, so a jump costs nothing and looks like text that was left out.
    """
    positions = list(range(length))
    room = context - length
    if room <= 0 or rng.random() < 0.3:
        return positions
    for _ in range(rng.randint(1, 2)):
        cut, skip = rng.randrange(length), rng.randint(0, room)
        room -= skip
        positions[cut:] = [position + skip for position in positions[cut:]]
    return positions


class Rows(Dataset[Batch]):
    """Batch number i of a recipe: tokens, weights and positions, the same for the same seed."""

    def __init__(self, recipe: Recipe, tokenizer: PreTrainedTokenizerFast, context: int) -> None:
        self.recipe = recipe
        self.tokenizer = tokenizer
        self.context = context
        end = tokenizer.convert_tokens_to_ids(END_OF_TEXT)
        assert isinstance(end, int)
        self.end = end

    def __len__(self) -> int:
        return self.recipe.steps

    def __getitem__(self, step: int) -> Batch:
        """Return tokens [rows, T + 1], weights [rows, T + 1] and positions [rows, T]."""
        rng = Random(f"{self.recipe.seed} {step}")
        stage, _ = self.recipe.locate(step)
        rows = [self._row(rng, stage) for _ in range(stage.rows)]
        positions = [
            positions_with_skips(rng, stage.length, self.context) for _ in range(stage.rows)
        ]
        return (
            torch.tensor([ids for ids, _ in rows]),
            torch.tensor([weights for _, weights in rows]),
            torch.tensor(positions),
        )

    def _row(self, rng: Random, stage: Stage) -> tuple[list[int], list[float]]:
        size = stage.length + 1
        # A prompt may or may not start with the separator, and positions start at 0 either way.
        ids, weights = ([self.end], [PROSE]) if rng.random() < 0.3 else ([], [])
        while len(ids) < size:
            more, their_weights = encode(self.tokenizer, document(rng, stage.mixture))
            ids += [*more, self.end]
            weights += [*their_weights, PROSE]
        return ids[:size], weights[:size]
