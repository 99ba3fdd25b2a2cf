"""The contiguous cache for a batch: one row of places for each running request, of ragged length.

A row is as long as the longest request may get, so a request that came in never runs out; what
that wastes, lab 05 saves.
"""

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from nanovllm.batching.errors import require
from nanovllm.batching.plan import Chunk, Plan
from nanovllm.batching.request import Request
from nanovllm.model.attend import Attend
from nanovllm.model.config import ModelConfig

GROUP = 8  # decodes looked at together: larger groups save calls, smaller ones padding


class SlotStore:
    """K and V [L, N, C, G, D]: N slots of C places; a request in the batch owns one slot."""

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
        self.slot_of: dict[Request, int] = {}
        self.free_slots = list(range(num_slots))[::-1]  # taken from the end
        self.lengths = [0] * num_slots  # tokens stored in each slot

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

    def block_ids(self, request: Request) -> list[int]:
        """The slot of an admitted request, its one block."""
        return [self.slot_of[request]]

    @property
    def nbytes(self) -> int:
        """Bytes reserved, whether used or not."""
        return self.k.nbytes + self.v.nbytes

    @property
    def total_tokens(self) -> int:
        """Places in all slots."""
        return self.num_slots * self.capacity

    @property
    def free_tokens(self) -> int:
        """Places that hold no token. Inside a slot they serve its owner alone."""
        return self.total_tokens - sum(self.lengths)

    def fits(self, num_tokens: int) -> bool:
        """Whether a request of so many tokens fits into a slot."""
        return num_tokens <= self.capacity

    def can_admit(self, request: Request) -> bool:
        """Whether a slot is free."""
        return bool(self.free_slots)

    def admit(self, request: Request) -> int:
        """Give the request a slot of its own, empty and clean; 0 of its tokens are there.

        Clean: the places are set to zero. What the last owner left would be masked, but a NaN
        times a weight of 0 is still NaN.
        """
        raise NotImplementedError("lab04 task 5: SlotStore.admit")

    def reserve(self, request: Request, num_tokens: int) -> bool:
        """Whether its slot has room for so many tokens behind the computed ones.

        The whole slot is the request's from the start, so there is nothing to take.
        """
        raise NotImplementedError("lab04 task 5: SlotStore.reserve")

    def release(self, request: Request) -> None:
        """Take the slot back for the next request; it holds no token of anybody."""
        raise NotImplementedError("lab04 task 5: SlotStore.release")

    def suspend(self, request: Request) -> None:
        """A preempted request leaves its slot, too: its tokens will be computed again."""
        self.release(request)

    def forget(self, request: Request) -> None:
        """A preempted request will not come back: nothing of it is here."""

    def places(self, plan: Plan) -> tuple[Int[Tensor, "T"], Int[Tensor, "T"]]:
        """The slot and the place in it of every token of a plan, chunk by chunk.

        A chunk of tokens start .. end - 1 goes to these places of its request's slot.
        """
        raise NotImplementedError("lab04 task 5: SlotStore.places")

    def bind(self, plan: Plan) -> Attend:
        """The attend of a step over the plan's tokens [T], its chunks one after another.

        All tokens are written first, then each chunk looks at its own slot alone, up to its own
        end. Chunks of one token are looked at together, a few neighbouring slots at a time
        (`_attend_decodes`); longer ones one at a time, each large enough to be worth a call.
        """
        raise NotImplementedError("lab04 task 5: SlotStore.bind")

    def _attend_chunk(
        self, layer: int, q: Float[Tensor, "T H D"], chunk: Chunk
    ) -> Float[Tensor, "T H D"]:
        """One chunk's queries over the stored places 0 .. end - 1 of its slot."""
        raise NotImplementedError("lab04 task 5: SlotStore._attend_chunk")

    def _attend_decodes(
        self, layer: int, q: Float[Tensor, "N H D"], chunks: Sequence[Chunk]
    ) -> Float[Tensor, "N H D"]:
        """N single queries, in order of their slots, each over its own slot: one call for all.

        If the slots are neighbours, they are read where they are, as a rectangle [N, S], S the
        longest row; else copied together first. A mask hides in each row what is behind its
        position, and, with a window, what is further back than that. The H/G heads that share
        a key head become queries of one row: they see the same places.
        """
        raise NotImplementedError("lab04 task 5: SlotStore._attend_decodes")

    def commit(self, plan: Plan) -> None:
        """The plan's tokens have been written in every layer: they count as stored."""
        raise NotImplementedError("lab04 task 5: SlotStore.commit")

    def check(self, requests: Iterable[Request]) -> None:
        """Raise InvariantError unless each of these owns one slot, and the rest are free."""
        require(set(self.slot_of) == set(requests), "slots are held by requests that do not run")
        taken = [*self.slot_of.values(), *self.free_slots]
        require(
            sorted(taken) == list(range(self.num_slots)),
            f"every slot is free or owned once, but there are {sorted(taken)}",
        )
        for request, slot in self.slot_of.items():
            require(
                self.lengths[slot] == request.num_computed_tokens <= self.capacity,
                f"slot {slot} holds {self.lengths[slot]} tokens of {request}",
            )
        require(all(self.lengths[slot] == 0 for slot in self.free_slots), "a free slot has tokens")


def _visible(ends: Int[Tensor, "N 1"], width: int, window: int | None) -> Bool[Tensor, "N S"]:
    """Of the places 0 .. width - 1, those before each end; with a window, the last of those."""
    raise NotImplementedError("lab04 task 5: _visible")


def _offsets(plan: Plan) -> list[int]:
    """Where each chunk begins among the plan's tokens."""
    offsets, end = [], 0
    for chunk in plan.chunks:
        offsets.append(end)
        end += chunk.length
    return offsets
