"""Lab 04's engine, whose model and cache are on several ranks (given)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from jaxtyping import Float
from torch import Tensor

from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.events import EngineEvent
from nanovllm.batching.plan import Plan
from nanovllm.paging.interface import Preemption
from nanovllm.paging.prefix_cache import SaltOf, no_salt
from nanovllm.paging.store import PagedStore
from nanovllm.paging.swapping import Swapping
from nanovllm.parallel.errors import ExecutorDied
from nanovllm.parallel.executor_interface import ExecutorInterface, RankRow
from nanovllm.parallel.remote import RemoteCache, RemoteModel
from nanovllm.parallel.step_input import step_input


class ParallelEngine(Engine):
    """Scheduler, block manager and sampler are here; a step is one call of the executor.

    The ranks run the plain step. When the executor dies, so does the engine: `step` raises
    ExecutorDied, and whoever runs it fails the open requests. swap_by_cost: as a PagedStore's, by
    what a copy takes on the rank that answers.
    """

    def __init__(
        self,
        model: RemoteModel,
        config: EngineConfig | None = None,
        *,
        executor: ExecutorInterface,
        block_size: int = 16,
        enable_prefix_caching: bool = True,
        preemption: Preemption = "recompute",
        num_host_blocks: int = 0,
        swap_by_cost: bool = False,
        salt_of: SaltOf = no_salt,
        **parts: Any,
    ) -> None:
        self.executor = model.executor = executor
        num_blocks = model.num_blocks or executor.num_blocks
        cache = RemoteCache(model, num_blocks, num_blocks * _block_bytes(executor))
        store = PagedStore(
            model.config,
            num_blocks,
            block_size,
            enable_prefix_caching=enable_prefix_caching,
            preemption=preemption,
            num_host_blocks=num_host_blocks,
            salt_of=salt_of,
            cache=cast(Any, cache),
        )
        if swap_by_cost:
            store.swapping = Swapping(_block_bytes(executor), num_host_blocks)
            if seconds := executor.call("copy_seconds"):  # 0: too quick for the clock
                store.swapping.bytes_per_second = 2 * _block_bytes(executor) / seconds
        super().__init__(cast(Any, model), config, store=store, **parts)

    def execute(self, plan: Plan) -> Float[Tensor, "N V"]:
        """Logits of the N chunks that complete, in order, from the rank that answers."""
        return self.executor.call("compute", step_input(plan, cast(PagedStore, self.store)))

    def step(self) -> list[EngineEvent]:
        """One round, as ever. Raises ExecutorDied."""
        events = super().step()
        if self.failure is not None:
            raise self.failure
        return events

    @property
    def failure(self) -> ExecutorDied | None:
        """Why no request can be answered any more: for /health, in any thread."""
        return self.executor.failure

    def rank_rows(self) -> list[RankRow]:
        """Each rank in numbers: for /metrics and the dashboard."""
        now, first = cast(PagedStore, self.store).num_blocks, self.executor.num_blocks
        rows = self.executor.rows()
        return [replace(row, kv_bytes=row.kv_bytes // first * now) for row in rows]


def _block_bytes(executor: ExecutorInterface) -> int:
    """Of one block, on all ranks together."""
    return sum(row.kv_bytes for row in executor.rows()) // executor.num_blocks
