"""Chunks of prompts as the model wants them, brought to the device without waiting for it."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import accumulate, chain
from typing import Any, Self

import torch
from jaxtyping import Int
from torch import Tensor

from nanovllm.batching.plan import Chunk
from nanovllm.paging.batch import PagedBatch
from nanovllm.performance.transfer import send


@dataclass(frozen=True)
class ChunkInput:
    """The T new tokens of some chunks, one chunk after another."""

    token_ids: Int[Tensor, "T"]
    positions: Int[Tensor, "T"]
    last: Int[Tensor, "N"]  # rows whose logits are wanted: the ends of the chunks that complete
    batch: PagedBatch

    @classmethod
    def of(cls, chunks: Sequence[Chunk], batch: PagedBatch) -> Self:
        """What chunks say, and where their K and V are; in host memory."""
        tokens = [chunk.request.token_ids(chunk.start, chunk.end) for chunk in chunks]
        places = [range(chunk.start, chunk.end) for chunk in chunks]
        ends = zip(chunks, accumulate(chunk.length for chunk in chunks), strict=True)
        last = [end - 1 for chunk, end in ends if chunk.completes]
        parts = list(chain.from_iterable(tokens)), list(chain.from_iterable(places)), last
        ids, positions, ends_at = (torch.tensor(x, dtype=torch.int64) for x in parts)
        return cls(ids, positions, ends_at, batch)

    def to(self, device: torch.device) -> Self:
        """The same on a device; the copies are on their way."""
        batch = {f.name: getattr(self.batch, f.name) for f in fields(PagedBatch)}
        moved: Any = {n: send(v, device) if torch.is_tensor(v) else v for n, v in batch.items()}
        own = (self.token_ids, self.positions, self.last)
        ids, positions, last = (send(x, device) for x in own)
        return type(self)(ids, positions, last, PagedBatch(**moved))
