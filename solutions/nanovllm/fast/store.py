"""Lab 05's paged store over a FastCache, with a short cut where there is nothing to do."""

from __future__ import annotations

from dataclasses import replace

import torch

from nanovllm.batching.plan import Plan
from nanovllm.batching.request import Request
from nanovllm.fast.cache import FastCache, attend_plainly
from nanovllm.model.config import ModelConfig
from nanovllm.paging.sharing import needs_copy
from nanovllm.paging.store import PagedStore, carry_out


class FastStore(PagedStore):
    """The same books and the same decisions as a PagedStore; another layout of K and V."""

    def __init__(
        self, config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype
    ) -> None:
        cache = FastCache(config, num_blocks, block_size, dtype)
        super().__init__(
            config, num_blocks, block_size, dtype, attention=attend_plainly, cache=cache
        )

    def reserve(self, request: Request, num_tokens: int) -> bool:
        """As the manager; the usual case, room enough in a block of its own, is settled here."""
        table, start = self.manager.tables[request], request.num_computed_tokens
        has_blocks = start + num_tokens <= table.num_slots
        if has_blocks and not needs_copy(self.manager.pool, table, start):
            return True
        return super().reserve(request, num_tokens)

    def commit(self, plan: Plan) -> None:
        """As the manager; the usual case, a token that fills no block, is settled here."""
        tables, size, filling, used = self.manager.tables, self.manager.block_size, [], 0
        for chunk in plan.chunks:
            if chunk.length == 1 and (end := chunk.start + 1) % size:
                tables[chunk.request].num_tokens = end
                used += 1
            else:
                filling.append(chunk)
        self.manager.num_unused_slots -= used
        if filling:
            super().commit(replace(plan, chunks=tuple(filling)))

    def make_copies(self) -> None:
        """Carry out the block copies that are due before the next write."""
        if self.manager.transfers:
            carry_out(self.manager.transfers, self.cache)
