"""Which preempted requests go to host memory, by measured cost, and what that moves (given)."""

import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field

from nanovllm.batching.plan import Plan
from nanovllm.paging.cache import PagedCache
from nanovllm.paging.swap_cost import swap_pays
from nanovllm.paging.transfers import Direction, Transfer

PROBE = 16  # blocks
NEW = 0.2  # what one more measurement weighs against those before it


@dataclass
class Swapping:
    """Two measured rates, and the books of host memory; one for each store.

    block_bytes: of one block, K and V of all layers. The rates are None until they are measured.

    >>> swapping = Swapping(block_bytes=1000, num_host_blocks=8)
    >>> swapping.pays(num_blocks=2, num_tokens=30)  # nothing is measured: what was computed is kept
    True
    >>> swapping.bytes_per_second, swapping.tokens_per_second = 1e6, 30_000.0
    >>> swapping.pays(num_blocks=2, num_tokens=30)  # 4 ms against 1 ms
    False
    """

    block_bytes: int
    num_host_blocks: int
    clock: Callable[[], float] = time.perf_counter
    bytes_per_second: float | None = None
    tokens_per_second: float | None = None
    bytes_out: int = 0  # copied since the start
    bytes_in: int = 0
    num_swapped: int = 0  # preempted requests whose K and V went to host memory
    num_recomputed: int = 0  # those that compute theirs again
    held: dict[Hashable, int] = field(default_factory=dict)  # host blocks, by request
    _started: float = 0.0  # when the newest step began

    def measure(self, cache: PagedCache) -> None:
        """How fast blocks go there and back, before any holds a token; the first time warms up."""
        pairs = [
            (block, block) for block in range(min(PROBE, cache.num_blocks, self.num_host_blocks))
        ]
        seconds = 0.0
        for _ in range(2):
            started = self.clock()
            cache.swap_out(pairs)
            cache.swap_in(pairs)
            seconds = self.clock() - started
        if seconds > 0:
            self.bytes_per_second = 2 * len(pairs) * self.block_bytes / seconds

    def pays(self, num_blocks: int, num_tokens: int) -> bool:
        """Whether to keep so many blocks, or to compute so many tokens again."""
        if self.bytes_per_second is None or self.tokens_per_second is None:
            return True
        moved = num_blocks * self.block_bytes
        return swap_pays(moved, self.bytes_per_second, num_tokens, self.tokens_per_second)

    def copied(self, moves: Iterable[Transfer], seconds: float) -> None:
        """These copies were made in so many seconds; those within the device count for nothing."""
        directions = [move.direction for move in moves]
        out, back = (directions.count(d) * self.block_bytes for d in (Direction.OUT, Direction.IN))
        self.bytes_out += out
        self.bytes_in += back
        if seconds > 0 and out + back and Direction.COPY not in directions:
            self.bytes_per_second = _mean(self.bytes_per_second, (out + back) / seconds)

    def begin(self) -> None:
        """A step begins to compute."""
        self._started = self.clock()

    def end(self, plan: Plan) -> None:
        """The step is over; one that read a prompt tells how fast prompts are read."""
        seconds = self.clock() - self._started
        if seconds > 0 and any(chunk.length > 1 for chunk in plan.chunks):
            self.tokens_per_second = _mean(self.tokens_per_second, plan.num_tokens / seconds)

    def facts(self) -> dict[str, float | int | None]:
        """For metrics and pictures, in bytes, requests and rates."""
        return {
            "space_bytes": self.num_host_blocks * self.block_bytes,
            "used_bytes": sum(list(self.held.values())) * self.block_bytes,
            "bytes_out": self.bytes_out,
            "bytes_in": self.bytes_in,
            "num_swapped": self.num_swapped,
            "num_recomputed": self.num_recomputed,
            "bytes_per_second": self.bytes_per_second,
            "tokens_per_second": self.tokens_per_second,
        }


def _mean(before: float | None, new: float) -> float:
    return new if before is None else (1 - NEW) * before + NEW * new
