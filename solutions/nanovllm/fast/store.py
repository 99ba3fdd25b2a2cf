"""Lab 05's paged store over a FastCache."""

from __future__ import annotations

import torch

from nanovllm.fast.cache import FastCache, FastInt8Cache, attend_plainly
from nanovllm.model.attend import Attend
from nanovllm.model.config import ModelConfig
from nanovllm.paging.batch import PagedBatch
from nanovllm.paging.interface import BlockManagerInterface
from nanovllm.paging.store import PagedStore


class FastStore(PagedStore):
    """The same manager and the same decisions as a PagedStore; another layout of K and V.

    kv_cache_dtype: "auto" for the model's own, or "int8" for lab 09's codes. num_host_blocks:
    where preempted requests are swapped to, if that pays; 0 for none.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        manager: BlockManagerInterface | None = None,
        kv_cache_dtype: str = "auto",
        num_host_blocks: int = 0,
    ) -> None:
        if manager is not None:
            num_blocks, block_size = manager.num_blocks, manager.block_size
        made = FastInt8Cache if kv_cache_dtype == "int8" else FastCache
        cache = made(config, num_blocks, block_size, dtype, num_host_blocks)
        super().__init__(
            config,
            num_blocks,
            block_size,
            dtype,
            preemption="swap" if num_host_blocks else "recompute",
            num_host_blocks=num_host_blocks,
            attention=attend_plainly,
            cache=cache,
            manager=manager,
            swap_by_cost=num_host_blocks > 0,
        )

    def attend(self, batch: PagedBatch) -> Attend:
        """What runs until the native step is ready; that of lab 09 over codes."""
        if not isinstance(self.cache, FastInt8Cache):
            return super().attend(batch)
        from nanovllm.quantization.kv_store import attend_to_codes  # a release may lack it

        return attend_to_codes(self.cache, self.config, batch)
