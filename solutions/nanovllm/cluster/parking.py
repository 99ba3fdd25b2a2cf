"""The prefill side of a connector: what it has computed stays until the other side has it."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Protocol


class HoldsBlocks(Protocol):
    """Lab 05's block manager, as far as it is used here."""

    def hold(self, block_ids: Iterable[int], owner: Hashable) -> None: ...
    def drop(self, block_ids: Iterable[int], owner: Hashable) -> None: ...


@dataclass(frozen=True)
class Parked:
    """K and V that wait to be fetched; the owner of their blocks.

    expires: on the clock, when its time is over; from that moment on it is.
    """

    transfer_id: str
    block_ids: tuple[int, ...]
    num_tokens: int
    expires: float


class Parking:
    """Holds the blocks of finished prefills, each until it is acknowledged or its time is over.

    `Parking(manager, seconds=60.0, clock=time.monotonic)`. manager: who is told by `hold` and
    `drop`; the owner is the Parked itself, so each transfer is an owner of its own. seconds: how
    long one waits at most, on `clock`.

    `park(transfer_id, block_ids, num_tokens)`: hold these blocks from now on. False, and no change,
    where the id is in use: one that is over its time is in use until it is dropped.

    `find(transfer_id)`: the Parked of this id; None if there is none, or its time is over. Finding
    does not end it: a transfer that was cut is fetched again.

    `acknowledge(transfer_id)`: drop its blocks; whether the id was in use, be it over its time or
    not. A second acknowledgement, or one that comes after `expire` has dropped the blocks, finds
    none and frees nothing: they may belong to others by then.

    `expire()`: drop what is over its time; how many those were.

    `len(parking)`: how many are parked and not dropped yet.

    Blocks are dropped in reverse order: the prefix cache loses a block before the one it follows.

    >>> from nanovllm.paging.block_pool import BlockPool
    >>> from nanovllm.paging.holds import Holds
    >>> pool = BlockPool(4)
    >>> parking, blocks = Parking(Holds(pool)), pool.allocate(2, "a request")
    >>> parking.park("t1", blocks, 7)
    True
    >>> pool.free(blocks, "a request")
    >>> pool.num_free, parking.acknowledge("t1"), parking.acknowledge("t1"), pool.num_free
    (2, True, False, 4)
    """

    ### BEGIN SOLUTION
    def __init__(
        self,
        manager: HoldsBlocks,
        seconds: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.manager, self.seconds, self.clock = manager, seconds, clock
        self.parked: dict[str, Parked] = {}

    def __len__(self) -> int:
        return len(self.parked)

    def park(self, transfer_id: str, block_ids: Iterable[int], num_tokens: int) -> bool:
        if transfer_id in self.parked:
            return False
        expires = self.clock() + self.seconds
        parked = Parked(transfer_id, tuple(block_ids), num_tokens, expires)
        self.manager.hold(parked.block_ids, parked)
        self.parked[transfer_id] = parked
        return True

    def find(self, transfer_id: str) -> Parked | None:
        parked = self.parked.get(transfer_id)
        return parked if parked is not None and self.clock() < parked.expires else None

    def acknowledge(self, transfer_id: str) -> bool:
        parked = self.parked.pop(transfer_id, None)
        if parked is None:
            return False
        self.manager.drop(parked.block_ids[::-1], parked)
        return True

    def expire(self) -> int:
        now = self.clock()
        late = [t for t, parked in self.parked.items() if parked.expires <= now]
        return sum(self.acknowledge(transfer_id) for transfer_id in late)

    ### END SOLUTION
