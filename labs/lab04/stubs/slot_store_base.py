"""`SlotStoreBase`: the memory of a slot store, its sizes, and a check of what all may see (given).

`SlotStore` is a SlotStoreBase that knows whose slot is whose.
"""

from collections.abc import Iterable
from typing import Any

import torch

from nanovllm.batching.errors import require
from nanovllm.batching.request import Request
from nanovllm.model.config import ModelConfig


class SlotStoreBase:
    """K and V in `k` and `v` [L, N, C, G, D]: N slots of C places, all zeros at first."""

    free_tokens: Any  # an int: the SlotStore's own, as an attribute or a property

    def __init__(
        self,
        config: ModelConfig,
        num_slots: int,
        capacity: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        shape = (config.num_layers, num_slots, capacity, config.num_kv_heads, config.head_dim)
        self.config = config
        self.k = torch.zeros(shape, dtype=dtype, device=device)
        self.v = torch.zeros(shape, dtype=dtype, device=device)

    @property
    def num_slots(self) -> int:
        """Requests that can be held at once."""
        return self.k.shape[1]

    @property
    def capacity(self) -> int:
        """Places in each slot."""
        return self.k.shape[2]

    @property
    def num_blocks(self) -> int:
        """As every store: a slot is a block."""
        return self.num_slots

    @property
    def block_size(self) -> int:
        """As every store: places in each slot."""
        return self.capacity

    @property
    def nbytes(self) -> int:
        """Bytes reserved, whether used or not."""
        return self.k.nbytes + self.v.nbytes

    @property
    def total_tokens(self) -> int:
        """Places in all slots."""
        return self.num_slots * self.capacity

    def fits(self, num_tokens: int) -> bool:
        """Whether a request of so many tokens fits into a slot."""
        return num_tokens <= self.capacity

    def block_ids(self, request: Request) -> list[int]:
        """The slot of an admitted request, its one block: for a subclass to say."""
        raise NotImplementedError("lab04 task 5: SlotStore.block_ids")

    def release(self, request: Request) -> None:
        """The request leaves for good: for a subclass to do."""
        raise NotImplementedError("lab04 task 5: SlotStore.release")

    def suspend(self, request: Request) -> None:
        """A preempted request leaves its slot, too: its tokens will be computed again."""
        self.release(request)

    def forget(self, request: Request) -> None:
        """A preempted request will not come back: nothing of it is here."""

    def check(self, requests: Iterable[Request]) -> None:
        """Raise InvariantError unless these have a slot each, and the free places add up.

        It asks `block_ids` and `free_tokens`. What only a subclass knows, it must check itself.
        """
        held = list(requests)
        slots = sorted(slot for request in held for slot in self.block_ids(request))
        require(
            len(slots) == len(held) and len(set(slots) & set(range(self.num_slots))) == len(held),
            f"{len(held)} requests need a slot each, but have {slots}",
        )
        used = sum(request.num_computed_tokens for request in held)
        require(
            self.free_tokens == self.total_tokens - used,
            f"{self.free_tokens} of {self.total_tokens} places are free, {used} are used",
        )
