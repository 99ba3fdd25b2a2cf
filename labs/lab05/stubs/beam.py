"""Beam search over blocks: beams share what they have in common and copy only to differ."""

from collections.abc import Callable, Sequence

import torch

from nanovllm.generation.beam import BeamSearchParams, Hypothesis, beam_search
from nanovllm.generation.request import weight_of
from nanovllm.model.attend import Attend
from nanovllm.model.cache import CacheFullError
from nanovllm.model.config import ModelConfig
from nanovllm.model.transformer import Transformer
from nanovllm.paging.attention import paged_attention
from nanovllm.paging.batch import PagedAttention, PagedBatch, make_batch
from nanovllm.paging.block_pool import BlockPool
from nanovllm.paging.block_table import BlockTable, blocks_for
from nanovllm.paging.cache import PagedCache
from nanovllm.paging.sharing import fork, reserve
from nanovllm.paging.store import attend_to_blocks, carry_out
from nanovllm.paging.transfers import Transfer


class PagedBeamCache:
    """Lab 03's BatchCache, in blocks: rows of equal length, one to begin with.

    width: the most rows; capacity: the most tokens a row. cache: where K and V are; a PagedCache
    of the size that rows without anything in common need if None.
    """

    def __init__(
        self,
        config: ModelConfig,
        width: int,
        capacity: int,
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        attention: PagedAttention = paged_attention,
        cache: PagedCache | None = None,
    ) -> None:
        num_blocks = width * blocks_for(capacity, block_size)  # if the rows shared nothing
        self.config = config
        self.capacity = capacity
        self.attention = attention
        self.pool = BlockPool(num_blocks)
        self.cache = cache or PagedCache(config, num_blocks, block_size, dtype, device)
        self.rows = [BlockTable(block_size)]
        self.num_copies = 0  # blocks copied on write so far
        self.length = 0  # tokens stored in each row

    def bind(self, num_columns: int) -> Attend:
        """The attend of a step of `num_columns` new tokens a row, row by row [N*S].

        Raises CacheFullError.
        """
        start, end = self.length, self.length + num_columns
        transfers: list[Transfer] = []
        ready = [reserve(self.pool, row, start, end, transfers) for row in self.rows]
        if end > self.capacity or not all(ready):
            raise CacheFullError(f"{num_columns} more tokens a row do not fit behind {start}.")
        self.num_copies += len(transfers)
        carry_out(transfers, self.cache)
        return self.attend(make_batch([(row, start, end) for row in self.rows], self.cache.device))

    def attend(self, batch: PagedBatch) -> Attend:
        """What every layer does: write the step's K and V, and attend over the blocks."""
        return attend_to_blocks(self.cache, self.config, batch, self.attention)

    def advance(self, num_columns: int) -> None:
        """Count tokens as stored, once every layer has written them."""
        self.length += num_columns
        for row in self.rows:
            row.num_tokens = self.length

    def reorder(self, parents: Sequence[int]) -> None:
        """Make row i continue what row parents[i] was; the number of rows may change.

        Nothing is copied: the new rows are forks of the old, which are freed.
        """
        rows = [fork(self.pool, self.rows[parent], self.length) for parent in parents]
        for row in self.rows:
            row.free(self.pool)
        self.rows = rows


def paged_beam_search(
    model: Transformer,
    prompt_token_ids: Sequence[int],
    params: BeamSearchParams,
    *,
    max_model_len: int | None = None,
    block_size: int = 16,
    make_beam_cache: Callable[..., PagedBeamCache] = PagedBeamCache,
) -> list[Hypothesis]:
    """Lab 03's `beam_search`, with beams that share blocks: the same answers, less memory.

    make_beam_cache: PagedBeamCache, or what is made with the same arguments in its place. Raises
    RequestError.
    """
    weight = weight_of(model)

    def in_blocks(capacity: int) -> PagedBeamCache:
        sizes = params.beam_width, capacity, block_size
        return make_beam_cache(model.config, *sizes, weight.dtype, weight.device)

    return beam_search(
        model, prompt_token_ids, params, max_model_len=max_model_len, make_cache=in_blocks
    )
