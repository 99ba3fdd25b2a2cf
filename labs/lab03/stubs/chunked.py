"""Chunked prefill: read a prompt in pieces, so that a long one need not hold up the rest."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nanovllm.model.cache import ContiguousCache, forward_cached
from nanovllm.model.transformer import Transformer


@dataclass(frozen=True)
class Chunk:
    """A run of a sequence's tokens that is computed in one step."""

    start: int
    length: int

    @property
    def end(self) -> int:
        """One past the last token."""
        return self.start + self.length


@dataclass(frozen=True)
class PrefillCost:
    """What reading a prompt costs; all but `tokens_computed` depends on the chunk size."""

    steps: int
    tokens_computed: int
    score_elements: int  # query-key pairs of one head, those a causal mask hides included
    peak_score_elements: int  # of the largest step: the memory that attention scores need


def plan_chunks(num_tokens: int, chunk_size: int, computed: int = 0) -> list[Chunk]:
    """Cut what is left of a sequence into chunks, none if nothing is left.

    Raises:
        ValueError: chunk_size is under 1, which would never get anywhere.

    >>> [(chunk.start, chunk.length) for chunk in plan_chunks(10, 4, computed=1)]
    [(1, 4), (5, 4), (9, 1)]
    """
    raise NotImplementedError("lab03 task 4: plan_chunks")


def prefill_cost(num_tokens: int, chunk_size: int) -> PrefillCost:
    """Count the work of a prefill in chunks: a chunk of T tokens that ends at S scores T * S pairs.

    >>> prefill_cost(8, 4)
    PrefillCost(steps=2, tokens_computed=8, score_elements=48, peak_score_elements=32)
    """
    raise NotImplementedError("lab03 task 4: prefill_cost")


@torch.inference_mode()
def chunked_prefill(
    model: Transformer,
    cache: ContiguousCache,
    token_ids: Int[Tensor, "S"],
    chunk_size: int,
    on_chunk: Callable[[Chunk], None] | None = None,
) -> Float[Tensor, "1 V"]:
    """Bring the cache up to all of `token_ids`, `chunk_size` at a time; the last token's logits.

    Starts at cache.length: tokens stored before are not computed again. Only the last chunk
    asks for logits. Any chunk size gives the same result. `on_chunk` is called after each chunk,
    when the cache holds it.

    Raises:
        ValueError: the cache already holds all the tokens, so there is nothing to predict from.
    """
    raise NotImplementedError("lab03 task 4: chunked_prefill")
