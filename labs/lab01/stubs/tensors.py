"""From ids to the tensors that a model takes, and what a vocabulary costs.

N sequences, T tokens of one of them, S tokens of the longest, V vocabulary, E hidden size.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nanovllm.tokenization.byte_level import well_formed
from nanovllm.tokenization.errors import TokenizerError
from nanovllm.tokenization.tokenizer import Tokenizer


def embed(token_ids: Int[Tensor, "*T"], weight: Float[Tensor, "V E"]) -> Float[Tensor, "*T E"]:
    """Return the row of the embedding matrix for each id: a lookup, no multiplication.

    An id outside 0..V-1 raises TokenizerError and names it; indexing would let -1 mean the last
    row.

    >>> embed(torch.tensor([2, 0]), torch.tensor([[1.0], [2.0], [3.0]])).tolist()
    [[3.0], [1.0]]
    """
    raise NotImplementedError("lab01 task 6: embed")


@dataclass(frozen=True)
class Padded:
    """Sequences of unequal length as one rectangle."""

    token_ids: Int[Tensor, "N S"]
    mask: Bool[Tensor, "N S"]  # True where there is a token, False on padding
    positions: Int[Tensor, "N S"]  # 0, 1, 2, ... over each sequence's tokens; 0 on padding

    @property
    def waste(self) -> float:
        """The share of the rectangle that is padding."""
        return 1 - self.mask.sum().item() / max(self.mask.numel(), 1)


def pad_batch(
    sequences: Sequence[Sequence[int]], pad_id: int, side: Literal["left", "right"] = "left"
) -> Padded:
    """Put sequences into one [N, S] rectangle, S being the longest, filled up with `pad_id`.

    On the left by default: then all last tokens, whose logits generation needs, stand in the last
    column. The mask comes from the lengths: `pad_id` is often the id of a real token too. No
    sequences, or none but empty ones, raise TokenizerError.

    >>> pad_batch([[5, 6, 7], [8]], pad_id=0).token_ids.tolist()
    [[5, 6, 7], [0, 0, 8]]
    """
    raise NotImplementedError("lab01 task 6: pad_batch")


def truncate(token_ids: Sequence[int], limit: int, keep_first: int = 0) -> list[int]:
    """Return at most `limit` ids: the first `keep_first` and then the last ones.

    The end of a prompt holds the question; `keep_first` saves the beginning-of-sequence token. A
    negative limit, and one below `keep_first`, raise TokenizerError.

    >>> truncate([1, 2, 3, 4, 5], 3, keep_first=1)
    [1, 4, 5]
    """
    raise NotImplementedError("lab01 task 6: truncate")


@dataclass(frozen=True)
class VocabularyCost:
    """What a vocabulary costs in memory and buys in length."""

    parameters: int  # of the embedding, and of the output layer where it has weights of its own
    nbytes: int
    tokens: int  # that the texts become
    bytes_per_token: float  # of UTF-8; higher is shorter sequences
    cache_nbytes: int  # keys and values of these tokens in all layers


def vocabulary_cost(
    tokenizer: Tokenizer,
    texts: Iterable[str],
    hidden_size: int,
    tied: bool,
    dtype: torch.dtype = torch.bfloat16,
    cache_bytes_per_token: int = 0,
) -> VocabularyCost:
    """Weigh a tokenizer's vocabulary against the length of texts encoded with it.

    V * E parameters for the embedding, and as many for the output layer unless the two are tied;
    V is `tokenizer.vocab_size`, special tokens included. `texts` may be read once only. Texts
    without a token have 0.0 bytes per token; a lone surrogate counts as U+FFFD, as in `encode`.

    >>> from nanovllm.tokenization.vocabulary import BPEModel
    >>> model = BPEModel({bytes([byte]): byte for byte in range(256)}, [])
    >>> vocabulary_cost(Tokenizer(model), ["café"], hidden_size=64, tied=True)
    VocabularyCost(parameters=16384, nbytes=32768, tokens=5, bytes_per_token=1.0, cache_nbytes=0)
    """
    raise NotImplementedError("lab01 task 6: vocabulary_cost")
