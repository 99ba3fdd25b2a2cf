"""Lab 05's paged store over a FastCache."""

from __future__ import annotations

import torch

from nanovllm.fast.cache import FastCache, attend_plainly
from nanovllm.model.config import ModelConfig
from nanovllm.paging.interface import BlockManagerInterface
from nanovllm.paging.store import PagedStore


class FastStore(PagedStore):
    """The same manager and the same decisions as a PagedStore; another layout of K and V."""

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        manager: BlockManagerInterface | None = None,
    ) -> None:
        if manager is not None:
            num_blocks, block_size = manager.num_blocks, manager.block_size
        cache = FastCache(config, num_blocks, block_size, dtype)
        super().__init__(
            config,
            num_blocks,
            block_size,
            dtype,
            attention=attend_plainly,
            cache=cache,
            manager=manager,
        )
