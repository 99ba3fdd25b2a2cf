"""Lab 05's store with a connector: some prompts come computed, others go to somebody else."""

from __future__ import annotations

from typing import Any

from nanovllm.batching.plan import Chunk, Plan
from nanovllm.batching.request import Request
from nanovllm.cluster.header import Header
from nanovllm.cluster.parking import Parking
from nanovllm.cluster.sides import Decodes
from nanovllm.cluster.wire import Received, load, pack
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
    """A PagedStore whose requests may have a side in a transfer (`side_of`); others are as always.

    model: the fingerprint of the weights. seconds: how long a finished prefill waits to be
    fetched. loaded: tokens loaded so far.
    """

    why_not_compact = "blocks are parked for other engines by their numbers; leave --role out"

    def __init__(self, *args: Any, model: str, seconds: float = 60.0, **options: Any) -> None:
        super().__init__(*args, **options)
        self.header = Header.of(self.cache, model)
        self.parking = Parking(self.manager, seconds)
        self.loaded = 0
        self.used: set[Request] = set()  # whose received tokens were loaded

    @property
    def free_tokens(self) -> int:
        """As always; where nothing is free, what was parked too long is dropped first: a step has
        no budget then, and nobody would ever ask `can_admit`."""
        free = super().free_tokens
        if free:
            return free
        self.parking.expire()
        return super().free_tokens

    def can_admit(self, request: Request) -> bool:
        """As always; before that, what was parked too long is dropped, be there room or not."""
        ### BEGIN SOLUTION
        self.parking.expire()
        return super().can_admit(request)
        ### END SOLUTION

    def admit(self, request: Request) -> int:
        """As always; tokens of a Received that this engine does not have are loaded as well.

        Returns how many tokens are here: found, or loaded. All of them count as computed, so that
        later requests find their full blocks in the prefix cache.

        What was received is loaded once in a request's life: whoever was preempted computes its
        prompt again, as any other does. A block that others read as well is never written to.
        """
        ### BEGIN SOLUTION
        local = super().admit(request)
        received = side_of(request)
        if not isinstance(received, Received) or request in self.used:
            return local
        self.used.add(request)
        count = external_tokens(received.num_tokens, request.num_tokens, local)
        if not count:
            return local
        self.make_copies()  # who was preempted may still have to go to the host from these blocks
        end = local + count
        load(self.cache, received.upto(end), self.block_ids(request), local)
        self.manager.commit(Plan((Chunk(request, local, count, request.num_tokens),)))
        self.loaded += count
        return end
        ### END SOLUTION

    def release(self, request: Request) -> None:
        """As always; the blocks of the prompt of one that Decodes elsewhere are parked first.

        Not if its prompt was not computed to the end: then there is nothing to send. Blocks that
        hold none of its prompt are not parked. The request stands in `used` no more.
        """
        ### BEGIN SOLUTION
        side, length = side_of(request), len(request.sequence.prompt_token_ids)
        if isinstance(side, Decodes) and request.num_computed_tokens >= length:
            needed = self.header.num_blocks(length)
            self.parking.park(side.transfer_id, self.block_ids(request)[:needed], length)
        self.used.discard(request)
        super().release(request)
        ### END SOLUTION

    def forget(self, request: Request) -> None:
        """As always: a request ends that is not in the store now."""
        self.used.discard(request)
        super().forget(request)

    def fetch(self, transfer_id: str) -> bytes | None:
        """The bytes of parked K and V; None if there is nothing parked by this name any more.

        What is over its time is dropped first. Fetching ends nothing. To be called in the engine's
        thread, between two steps.
        """
        ### BEGIN SOLUTION
        self.parking.expire()
        parked = self.parking.find(transfer_id)
        if parked is None:
            return None
        return pack(self.header, self.cache, parked.block_ids, parked.num_tokens)
        ### END SOLUTION


def side_of(request: Request) -> Decodes | Received | None:
    """What a request has to do with a transfer; None for most."""
    return getattr(getattr(request.sequence, "params", None), "transfer", None)
