"""Lab 05's store with a connector: some prompts come computed, others go to somebody else."""

from __future__ import annotations

from typing import Any

from nanovllm.batching.plan import Chunk, Plan
from nanovllm.batching.request import Request
from nanovllm.cluster.header import Header
from nanovllm.cluster.parking import Parking
from nanovllm.cluster.transfer_params import Decodes
from nanovllm.cluster.wire import Received, load, pack
from nanovllm.paging.block_table import blocks_for
from nanovllm.paging.store import PagedStore


def external_tokens(received: int, num_tokens: int, local: int) -> int:
    """How many tokens of a request to load, behind those that are here.

    received: tokens whose K and V came. num_tokens: of the request; the last one is computed in
    any case, for nothing else gives the logits of the next. local: tokens found in this engine's
    own prefix cache; they stay as they are.

    >>> external_tokens(received=10, num_tokens=10, local=4)
    5
    >>> external_tokens(received=8, num_tokens=10, local=8)
    0
    """
    ### BEGIN SOLUTION
    return max(0, min(received, num_tokens - 1) - local)
    ### END SOLUTION


class ConnectedStore(PagedStore):
    """A PagedStore whose requests may have TransferParams; others are as always.

    A request that Decodes elsewhere: when it is released and its prompt is computed, the blocks of
    its prompt are parked. One whose K and V are Received: what its own engine does not have is
    loaded as it is admitted, and counts as computed. Once loaded, the received tensors are let go:
    after a preemption the request computes its prompt again, as any other.

    model: the fingerprint of the weights. loaded: tokens loaded so far.
    """

    why_not_compact = "blocks are parked for other engines by their numbers; leave --role out"

    def __init__(self, *args: Any, model: str, seconds: float = 60.0, **options: Any) -> None:
        super().__init__(*args, **options)
        self.header = Header.of(self.cache, model)
        self.parking = Parking(self.manager, seconds)
        self.loaded = 0
        self._used: set[Request] = set()  # whose received tokens were loaded

    def can_admit(self, request: Request) -> bool:
        """As always; what was parked too long makes room first."""
        self.parking.expire()
        return super().can_admit(request)

    ### BEGIN SOLUTION
    def admit(self, request: Request) -> int:
        local = super().admit(request)
        received = _side(request)
        if not isinstance(received, Received) or request in self._used:
            return local
        self._used.add(request)
        count = external_tokens(received.num_tokens, request.num_tokens, local)
        if not count:
            return local
        self.make_copies()  # a block that was shared in part is this request's own by now
        end = local + count
        load(self.cache, received.upto(end), self.block_ids(request), local)
        self.manager.commit(Plan((Chunk(request, local, count, request.num_tokens),)))
        self.loaded += count
        return end

    def release(self, request: Request) -> None:
        side, length = _side(request), len(request.sequence.prompt_token_ids)
        if isinstance(side, Decodes) and request.num_computed_tokens >= length:
            needed = blocks_for(length, self.block_size)
            self.parking.park(side.transfer_id, self.block_ids(request)[:needed], length)
        self._used.discard(request)
        super().release(request)

    def forget(self, request: Request) -> None:
        self._used.discard(request)
        super().forget(request)

    ### END SOLUTION

    def fetch(self, transfer_id: str) -> bytes | None:
        """The bytes of parked K and V; None if there is nothing parked by this name any more.

        To be called in the engine's thread, between two steps.
        """
        self.parking.expire()
        parked = self.parking.find(transfer_id)
        if parked is None:
            return None
        return pack(self.header, self.cache, parked.block_ids, parked.num_tokens)


def _side(request: Request) -> Decodes | Received | None:
    return getattr(getattr(request.sequence, "params", None), "transfer", None)
