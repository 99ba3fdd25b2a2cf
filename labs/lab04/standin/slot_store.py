"""A store with a cache of lab 02 for each request: nothing is reserved, nothing is batched."""

from collections.abc import Iterable

import torch
from torch import Tensor

from nanovllm.batching.plan import Plan
from nanovllm.batching.request import Request
from nanovllm.batching.slot_store_base import SlotStoreBase
from nanovllm.model.attend import Attend
from nanovllm.model.cache import ContiguousCache


class SlotStore(SlotStoreBase):
    """Requests by slot."""

    slots: list[Request | None]

    def __init__(self, *named: object, **more: object) -> None:
        super().__init__(*named, **more)
        self.slots = [None] * self.num_slots
        self.caches: dict[Request, ContiguousCache] = {}

    @property
    def free_tokens(self) -> int:
        """Places without a token."""
        return self.total_tokens - sum(cache.length for cache in self.caches.values())

    def fits(self, num_tokens: int) -> bool:
        """Whether a slot is large enough."""
        return num_tokens <= self.capacity

    def block_ids(self, request: Request) -> list[int]:
        """Its slot."""
        return [self.slots.index(request)]

    def can_admit(self, request: Request) -> bool:
        """Whether a slot is free."""
        return None in self.slots

    def admit(self, request: Request) -> int:
        """Give it the first free slot."""
        self.slots[self.slots.index(None)] = request
        self.caches[request] = ContiguousCache(self.config, self.capacity)
        return 0

    def reserve(self, request: Request, num_tokens: int) -> bool:
        """A cache grows by itself."""
        return request in self.caches

    def bind(self, plan: Plan) -> Attend:
        """Each chunk's tokens through its own cache."""
        for chunk in plan.chunks:
            self.caches[chunk.request].length = chunk.start

        def attend(layer: int, *qkv: Tensor) -> Tensor:
            parts = zip(plan.chunks, plan.rows, strict=True)
            return torch.cat(
                [
                    self.caches[chunk.request].attend(layer, *(x[list(rows)] for x in qkv))
                    for chunk, rows in parts
                ]
            )

        return attend

    def commit(self, plan: Plan) -> None:
        """Count what was written."""
        for chunk in plan.chunks:
            self.caches[chunk.request].length = chunk.end

    def release(self, request: Request) -> None:
        """Let it go."""
        self.slots[self.slots.index(request)] = None
        del self.caches[request]

    suspend = release

    def forget(self, request: Request) -> None:
        """Nothing is kept of those that wait."""

    def check(self, requests: Iterable[Request]) -> None:
        """Exactly these are held."""
        assert set(requests) == set(self.caches)
