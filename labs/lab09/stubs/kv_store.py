"""Lab 05's paged store over a quantized K/V cache (given)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from nanovllm.model.attend import Attend
from nanovllm.model.config import ModelConfig
from nanovllm.paging.attention import paged_attention
from nanovllm.paging.batch import PagedAttention, PagedBatch
from nanovllm.paging.beam import PagedBeamCache
from nanovllm.paging.block_table import blocks_for
from nanovllm.paging.interface import BlockManagerInterface
from nanovllm.paging.store import PagedStore
from nanovllm.quantization.kv_cache import QuantizedCache
from nanovllm.quantization.kv_interface import QuantizedCacheInterface


def attend_to_codes(
    cache: QuantizedCacheInterface,
    config: ModelConfig,
    batch: PagedBatch,
    attention: PagedAttention = paged_attention,
) -> Attend:
    """Every layer writes the step's K and V as codes, and then reads codes alone.

    So a token sees the same K and V of another one whether both are in one chunk or not: what is
    generated does not depend on chunks, blocks, the prefix cache or preemptions. Only the blocks
    of the step are turned into floats, a layer at a time, and numbered anew.
    """
    used, tables = batch.block_tables.unique(return_inverse=True)
    renumbered = replace(batch, block_tables=tables.to(torch.int32), reads={})

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        cache.write(layer, k, v, batch.slot_mapping)
        k_blocks, v_blocks = cache.read(layer, used)
        return attention(q, k_blocks, v_blocks, renumbered, window=config.window(layer))

    return attend


class QuantizedStore(PagedStore):
    """`Engine(model, store=QuantizedStore(config, num_blocks, kind="int4"))`: K and V in codes.

    kind: int8, int4 or fp8. All else is as in a PagedStore; there is no `cache` to be given.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int = 0,
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        *,
        kind: str = "int8",
        num_host_blocks: int = 0,
        manager: BlockManagerInterface | None = None,
        **options: Any,
    ) -> None:
        if manager is not None:
            num_blocks, block_size = manager.num_blocks, manager.block_size
        sizes = (num_blocks, block_size, dtype, device)
        super().__init__(
            config,
            *sizes,
            num_host_blocks=num_host_blocks,
            cache=cast(Any, QuantizedCache(config, *sizes, num_host_blocks, kind=kind)),
            manager=manager,
            **options,
        )
        self.kv_cache_dtype = kind  # a server tells

    def attend(self, batch: PagedBatch) -> Attend:
        return attend_to_codes(cast(Any, self.cache), self.config, batch, self.attention)


class QuantizedBeamCache(PagedBeamCache):
    """Lab 05's beams, with K and V in codes."""

    def __init__(
        self,
        config: ModelConfig,
        width: int,
        capacity: int,
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        *,
        kind: str = "int8",
    ) -> None:
        num_blocks = width * blocks_for(capacity, block_size)
        cache: Any = QuantizedCache(config, num_blocks, block_size, dtype, device, kind=kind)
        super().__init__(config, width, capacity, block_size, dtype, device, cache=cache)

    def attend(self, batch: PagedBatch) -> Attend:
        return attend_to_codes(cast(Any, self.cache), self.config, batch, self.attention)
