"""`SlotStore`: K and V of many requests; each has a slot of its own, as long as the longest one."""

### BEGIN SOLUTION
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from nanovllm.batching.errors import require
from nanovllm.batching.plan import Plan
from nanovllm.batching.rectangles import attend_rectangle
from nanovllm.batching.request import Request
from nanovllm.batching.slot_store_base import SlotStoreBase
from nanovllm.model.attend import Attend

GROUP = 8  # decodes looked at together: larger groups save calls, smaller ones padding


class _Rectangle(NamedTuple):
    """Queries that are computed together: N rows of T, each over a slot of its own."""

    tokens: Int[Tensor, "N T"]  # which of the step's tokens they are
    slots: slice | list[int]  # N of them; a slice is read without a copy
    ends: Int[Tensor, "N T"]  # each query sees the places before its end
    width: int  # the longest end

    def visible(self, window: int | None) -> Bool[Tensor, "N T S"]:
        """Of the places 0 .. width - 1, those before each end; with a window, the last of those."""
        places = torch.arange(self.width, device=self.ends.device)
        ends = self.ends[..., None]
        visible = places < ends
        if window is not None:
            visible &= places >= ends - window
        return visible


class SlotStore(SlotStoreBase):
    """A request in the batch owns one slot."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.slot_of: dict[Request, int] = {}
        self.free_slots = list(range(self.num_slots))[::-1]  # taken from the end
        self.lengths = [0] * self.num_slots  # tokens stored in each slot

    @property
    def free_tokens(self) -> int:
        """Places that hold no token. Inside a slot they serve its owner alone."""
        return self.total_tokens - sum(self.lengths)

    def block_ids(self, request: Request) -> list[int]:
        """The slot of an admitted request, its one block."""
        return [self.slot_of[request]]

    def can_admit(self, request: Request) -> bool:
        """Whether a slot is free."""
        return bool(self.free_slots)

    def admit(self, request: Request) -> int:
        """Give the request a slot of its own, empty and clean; 0 of its tokens are there."""
        slot = self.slot_of[request] = self.free_slots.pop()
        self.k[:, slot] = 0.0
        self.v[:, slot] = 0.0
        return 0

    def reserve(self, request: Request, num_tokens: int) -> bool:
        """Whether its slot has room for so many tokens behind the computed ones."""
        return request.num_computed_tokens + num_tokens <= self.capacity

    def commit(self, plan: Plan) -> None:
        """The plan's tokens have been written in every layer: they count as stored."""
        for chunk in plan.chunks:
            self.lengths[self.slot_of[chunk.request]] = chunk.end

    def release(self, request: Request) -> None:
        """Take the slot back for the next request; it holds no token of anybody."""
        slot = self.slot_of.pop(request)
        self.lengths[slot] = 0
        self.free_slots.append(slot)

    def check(self, requests: Iterable[Request]) -> None:
        """Raise InvariantError unless each of these owns one slot, and the rest are free."""
        require(set(self.slot_of) == set(requests), "slots are held by requests that do not run")
        require(len(self.slot_of) + len(self.free_slots) == self.num_slots, "a slot is lost")
        super().check(self.slot_of)

    def bind(self, plan: Plan) -> Attend:
        """The attend of a step over the plan's tokens [T], its chunks one after another."""
        owners = [self.slot_of[chunk.request] for chunk in plan.chunks for _ in range(chunk.length)]
        slots = self._tensor(owners)
        positions = self._tensor([p for c in plan.chunks for p in range(c.start, c.end)])
        rectangles = self._rectangles(plan, positions)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self.k[layer, slots, positions] = k
            self.v[layer, slots, positions] = v
            out, window = torch.empty_like(q), self.config.window(layer)
            for some in rectangles:
                keys = self.k[layer, :, : some.width][some.slots]
                values = self.v[layer, :, : some.width][some.slots]
                seen = some.visible(window)
                out[some.tokens] = attend_rectangle(q[some.tokens], keys, values, seen)
            return out

        return attend

    def _rectangles(self, plan: Plan, positions: Int[Tensor, "T"]) -> list[_Rectangle]:
        """One for each longer chunk, and one for every few decodes, as their slots lie."""
        parts = sorted(
            (self.slot_of[chunk.request], rows)
            for chunk, rows in zip(plan.chunks, plan.rows, strict=True)
        )
        decodes = [(slot, rows) for slot, rows in parts if len(rows) == 1]
        groups = [[(slot, rows)] for slot, rows in parts if len(rows) > 1]
        groups += [decodes[i : i + GROUP] for i in range(0, len(decodes), GROUP)]
        found = []
        for group in groups:
            slots = [slot for slot, _ in group]
            side_by_side = slots[-1] - slots[0] == len(slots) - 1
            which = slice(slots[0], slots[-1] + 1) if side_by_side else slots
            tokens = self._tensor([list(rows) for _, rows in group])
            ends = positions[tokens] + 1
            found.append(_Rectangle(tokens, which, ends, int(ends.max())))
        return found

    def _tensor(self, numbers: list) -> Int[Tensor, "..."]:
        return torch.tensor(numbers, dtype=torch.long, device=self.k.device)


### END SOLUTION
