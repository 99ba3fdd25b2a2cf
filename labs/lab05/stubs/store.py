"""The paged store: the manager's books and the cache's tensors, behind lab 04's KVStore."""

from __future__ import annotations

import time
from collections.abc import Iterable

import torch
from torch import Tensor

from nanovllm.batching.plan import Plan
from nanovllm.batching.request import Request
from nanovllm.model.attend import Attend
from nanovllm.model.config import ModelConfig
from nanovllm.paging.attention import paged_attention
from nanovllm.paging.batch import PagedAttention, PagedBatch, make_batch
from nanovllm.paging.block_table import BlockTable
from nanovllm.paging.cache import PagedCache
from nanovllm.paging.interface import BlockManagerInterface, Preemption
from nanovllm.paging.manager import BlockManager
from nanovllm.paging.prefix_cache import PrefixStats, SaltOf, no_salt
from nanovllm.paging.resizing import resize
from nanovllm.paging.swapping import Swapping
from nanovllm.paging.transfers import Direction, Transfer, runs


def carry_out(transfers: list[Transfer], cache: PagedCache) -> None:
    """Make the copies that were noted, in order, and strike them off the list."""
    do = {
        Direction.COPY: cache.copy_blocks,
        Direction.OUT: cache.swap_out,
        Direction.IN: cache.swap_in,
    }
    for run in list(runs(transfers)):
        do[run[0].direction]([(move.old, move.new) for move in run])
        del transfers[: len(run)]


def attend_to_blocks(
    cache: PagedCache, config: ModelConfig, batch: PagedBatch, attention: PagedAttention
) -> Attend:
    """Every layer writes the step's K and V into the cache, and attends over it."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        cache.write(layer, k, v, batch.slot_mapping)
        return attention(q, cache.k[layer], cache.v[layer], batch, window=config.window(layer))

    return attend


class PagedStore:
    """K and V of many requests in blocks; `Engine(model, store=PagedStore(...))` uses it.

    attention: what computes a step's attention (see attention.py). cache: where K and V are; a
    PagedCache of the sizes given here if None. manager: who says which blocks; lab 05's
    BlockManager if None. With a manager of your own, num_blocks, block_size, prefix caching,
    preemption and salts are its affair, not arguments here. swap_by_cost: of what a manager that
    swaps would keep in host memory, keep only what pays (see swapping.py).
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int = 0,
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        *,
        enable_prefix_caching: bool = True,
        preemption: Preemption = "recompute",
        num_host_blocks: int = 0,
        attention: PagedAttention = paged_attention,
        cache: PagedCache | None = None,
        salt_of: SaltOf = no_salt,
        manager: BlockManagerInterface | None = None,
        swap_by_cost: bool = False,
    ) -> None:
        self.config = config
        self.manager: BlockManagerInterface = manager or BlockManager(
            num_blocks,
            block_size,
            enable_prefix_caching=enable_prefix_caching,
            preemption=preemption,
            num_host_blocks=num_host_blocks,
            salt_of=salt_of,
        )
        self.num_blocks, self.block_size = self.manager.num_blocks, self.manager.block_size
        self.cache = cache or PagedCache(
            config, self.num_blocks, self.block_size, dtype, device, num_host_blocks
        )
        self.attention = attention
        self.total_tokens = self.manager.total_tokens
        self.found: dict[Request, int] = {}  # tokens that were here when it first came in
        self.swapping: Swapping | None = None
        if swap_by_cost:
            self.swapping = Swapping(self.nbytes // self.num_blocks, num_host_blocks)
            self.swapping.measure(self.cache)

    @property
    def nbytes(self) -> int:
        """Bytes reserved on the device, whether used or not."""
        return self.cache.nbytes

    def bind(self, plan: Plan) -> Attend:
        """Make the copies that are due; then every layer writes its tokens and attends."""
        self.make_copies()
        return self.attend(self.batch(plan))

    def attend(self, batch: PagedBatch) -> Attend:
        """What every layer does: write the step's K and V, and attend over the blocks."""
        return attend_to_blocks(self.cache, self.config, batch, self.attention)

    def make_copies(self) -> None:
        """Copy the blocks whose copies are due; to be called before anything is written."""
        if self.manager.transfers:
            moves, started = list(self.manager.transfers), time.perf_counter()
            carry_out(self.manager.transfers, self.cache)
            if self.swapping is not None:
                at_once = getattr(self.cache, "copies_at_once", True)  # else others make them
                seconds = time.perf_counter() - started if at_once else 0.0
                self.swapping.copied(moves, seconds)
        if self.swapping is not None:
            self.swapping.begin()

    def batch(self, plan: Plan, device: torch.device | str | None = None) -> PagedBatch:
        """What attention is told about a plan; on the cache's device if None."""
        spans = [
            (BlockTable(self.block_size, self.block_ids(chunk.request)), chunk.start, chunk.end)
            for chunk in plan.chunks
        ]
        return make_batch(spans, self.cache.device if device is None else device)

    def block_ids(self, request: Request) -> list[int]:
        return self.manager.block_ids(request)

    @property
    def prefix_stats(self) -> PrefixStats | None:
        return self.manager.prefix_stats

    def cached_blocks(self) -> list[int]:
        return self.manager.cached_blocks()

    @property
    def free_tokens(self) -> int:
        return self.manager.free_tokens

    def fits(self, num_tokens: int) -> bool:
        return self.manager.fits(num_tokens)

    def can_admit(self, request: Request) -> bool:
        return self.manager.can_admit(request)

    def admit(self, request: Request) -> int:
        if self.swapping is not None:
            self.swapping.held.pop(request, None)
        found = self.manager.admit(request)
        self.found.setdefault(request, found)
        return found

    def reserve(self, request: Request, num_tokens: int) -> bool:
        return self.manager.reserve(request, num_tokens)

    def trim(self, request: Request) -> None:
        """Give back blocks that were reserved and not used, if the manager is one that can."""
        trim = getattr(self.manager, "trim", None)
        if trim is not None:
            trim(request)

    def commit(self, plan: Plan) -> None:
        if self.swapping is not None:
            self.swapping.end(plan)
        self.manager.commit(plan)

    def suspend(self, request: Request) -> None:
        noted = len(self.manager.transfers)
        self.manager.suspend(request)
        if self.swapping is not None:
            self._keep_what_pays(request, self.swapping, noted)

    def _keep_what_pays(self, request: Request, swapping: Swapping, noted: int) -> None:
        """Take the copies of a suspended request off the list again where they do not pay."""
        before, new = self.manager.transfers[:noted], self.manager.transfers[noted:]
        kept = sum(move.direction is Direction.OUT for move in new)
        if kept and swapping.pays(kept, request.num_tokens):
            swapping.held[request] = kept
            swapping.num_swapped += 1
            return
        swapping.num_recomputed += 1
        if kept:
            others = [move for move in new if move.direction is not Direction.OUT]
            self.manager.transfers[:] = before + others
            self.manager.forget(request)  # its host blocks are free

    def forget(self, request: Request) -> None:
        if self.swapping is not None:
            self.swapping.held.pop(request, None)
        self.found.pop(request, None)
        self.manager.forget(request)

    def release(self, request: Request) -> None:
        self.found.pop(request, None)
        self.manager.release(request)

    def resize(self, num_blocks: int) -> None:
        """Keep the first blocks, or add some (see resizing.py)."""
        resize(self.manager, num_blocks)
        self.cache.resize(num_blocks)
        self.num_blocks, self.total_tokens = num_blocks, self.manager.total_tokens

    def check(self, requests: Iterable[Request]) -> None:
        self.manager.check(requests)
