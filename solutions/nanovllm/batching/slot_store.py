"""`SlotStore`: K and V of many requests; each has a slot of its own, as long as the longest one."""

### BEGIN SOLUTION
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
        """Give the request a slot of its own, empty and clean; 0 of its tokens are there."""
        slot = self.free_slots.pop()
        self.slot_of[request] = slot
        self.lengths[slot] = 0
        self.k[:, slot] = 0.0
        self.v[:, slot] = 0.0
        return 0

    def reserve(self, request: Request, num_tokens: int) -> bool:
        """Whether its slot has room for so many tokens behind the computed ones."""
        return request.num_computed_tokens + num_tokens <= self.capacity

    def release(self, request: Request) -> None:
        """Take the slot back for the next request; it holds no token of anybody."""
        slot = self.slot_of.pop(request)
        self.lengths[slot] = 0
        self.free_slots.append(slot)

    def suspend(self, request: Request) -> None:
        """A preempted request leaves its slot, too: its tokens will be computed again."""
        self.release(request)

    def forget(self, request: Request) -> None:
        """A preempted request will not come back: nothing of it is here."""

    def _places(self, plan: Plan) -> tuple[Int[Tensor, "T"], Int[Tensor, "T"]]:
        """The slot and the place in it of every token of a plan, chunk by chunk."""
        slots = [torch.full((c.length,), self.slot_of[c.request]) for c in plan.chunks]
        positions = [torch.arange(c.start, c.end) for c in plan.chunks]
        return torch.cat(slots).to(self.k.device), torch.cat(positions).to(self.k.device)

    def bind(self, plan: Plan) -> Attend:
        """The attend of a step over the plan's tokens [T], its chunks one after another."""
        slots, positions = self._places(plan)
        starts = _offsets(plan)
        single = [(t, c) for t, c in zip(starts, plan.chunks, strict=True) if c.length == 1]
        longer = [(t, c) for t, c in zip(starts, plan.chunks, strict=True) if c.length > 1]
        single.sort(key=lambda pair: self.slot_of[pair[1].request])
        rows = torch.tensor([t for t, _ in single], dtype=torch.long, device=self.k.device)
        neighbours = [single[i : i + GROUP] for i in range(0, len(single), GROUP)]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self.k[layer, slots, positions] = k
            self.v[layer, slots, positions] = v
            out = torch.empty_like(q)
            if single:
                groups = zip(q[rows].split(GROUP), neighbours, strict=True)
                done = [self._attend_decodes(layer, x, [c for _, c in some]) for x, some in groups]
                out[rows] = torch.cat(done)
            for t, chunk in longer:
                mine = slice(t, t + chunk.length)
                out[mine] = self._attend_chunk(layer, q[mine], chunk)
            return out

        return attend

    def _attend_chunk(
        self, layer: int, q: Float[Tensor, "T H D"], chunk: Chunk
    ) -> Float[Tensor, "T H D"]:
        """One chunk's queries over the stored places 0 .. end - 1 of its slot."""
        slot = self.slot_of[chunk.request]
        k, v = self.k[layer, slot, : chunk.end], self.v[layer, slot, : chunk.end]
        ends = torch.arange(chunk.start, chunk.end, device=q.device)[:, None] + 1  # [T, 1]
        out = scaled_dot_product_attention(
            *(x.transpose(0, 1)[None] for x in (q, k, v)),  # [1, H or G, T or S, D]
            attn_mask=_visible(ends, chunk.end, self.config.window(layer)),
            enable_gqa=True,
        )
        return out[0].transpose(0, 1)

    def _attend_decodes(
        self, layer: int, q: Float[Tensor, "N H D"], chunks: Sequence[Chunk]
    ) -> Float[Tensor, "N H D"]:
        """N single queries, in order of their slots, each over its own slot: one call for all."""
        slots = [self.slot_of[chunk.request] for chunk in chunks]
        longest = max(chunk.end for chunk in chunks)
        side_by_side = slots[-1] - slots[0] == len(slots) - 1
        which = slice(slots[0], slots[-1] + 1) if side_by_side else slots
        ends = torch.tensor([[chunk.end] for chunk in chunks], device=q.device)
        visible = _visible(ends, longest, self.config.window(layer))  # [N, S]
        rows, heads, dim = q.shape
        out = scaled_dot_product_attention(
            q.reshape(rows, self.config.num_kv_heads, -1, dim),  # [N, G, H/G, D]
            self.k[layer, :, :longest][which].transpose(1, 2),  # [N, G, S, D]
            self.v[layer, :, :longest][which].transpose(1, 2),
            attn_mask=visible[:, None, None],
        )
        return out.reshape(rows, heads, dim)

    def commit(self, plan: Plan) -> None:
        """The plan's tokens have been written in every layer: they count as stored."""
        for chunk in plan.chunks:
            self.lengths[self.slot_of[chunk.request]] = chunk.end

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
    places = torch.arange(width, device=ends.device)
    visible = places < ends
    if window is not None:
        visible &= places >= ends - window
    return visible


def _offsets(plan: Plan) -> list[int]:
    """Where each chunk begins among the plan's tokens."""
    offsets, end = [], 0
    for chunk in plan.chunks:
        offsets.append(end)
        end += chunk.length
    return offsets


### END SOLUTION
