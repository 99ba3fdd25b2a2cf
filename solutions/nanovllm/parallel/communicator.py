"""What a rank can do with its peers: send, receive, and count what that costs (given)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from nanovllm.parallel.errors import ParallelError


class Handle(Protocol):
    """A message under way."""

    def wait(self) -> None:
        """Return when the tensor that was sent may change, or the one received is there."""


@dataclass
class Count:
    """What one kind of message has cost a rank: calls, messages sent, bytes sent."""

    calls: int = 0
    messages: int = 0
    bytes: int = 0


@dataclass
class Counts:
    """The costs of a rank by kind; `kind` is what is being counted now."""

    by_kind: dict[str, Count] = field(default_factory=dict)
    kind: str = "send"

    def __getitem__(self, kind: str) -> Count:
        return self.by_kind.setdefault(kind, Count())

    @property
    def bytes(self) -> int:
        """Bytes sent, of all kinds."""
        return sum(count.bytes for count in self.by_kind.values())

    @property
    def messages(self) -> int:
        """Messages sent, of all kinds."""
        return sum(count.messages for count in self.by_kind.values())

    def clear(self) -> None:
        """Count from 0 again."""
        self.by_kind.clear()


class Communicator(ABC):
    """Rank `rank` of `size`, and its lines to the others.

    A tensor is sent as it lies in memory: it must be contiguous, and so must the one that receives
    it, which has the same number of elements and the same dtype. Nothing is sent of an empty one.
    Messages from one rank to another arrive in the order of their sending. A `send` may return
    only when the other rank receives: use `exchange` where both have something to send.

    Raises:
        ParallelError: a rank that is not there, a tensor that is not contiguous or does not fit.
        RankDied: the other rank is gone, or waits for something else for ever.
    """

    rank: int
    size: int
    counts: Counts

    def __init__(self, rank: int, size: int) -> None:
        if not 0 <= rank < size:
            raise ParallelError(f"a rank of {size} is 0 to {size - 1}, but this is rank {rank}.")
        self.rank, self.size, self.counts = rank, size, Counts()

    @abstractmethod
    def _start_send(self, x: Tensor, to: int) -> Handle: ...

    @abstractmethod
    def _start_receive(self, into: Tensor, source: int) -> Handle: ...

    def _start_exchange(self, x: Tensor, to: int, into: Tensor, source: int) -> list[Handle]:
        return [self._start_send(x, to), self._start_receive(into, source)]

    def isend(self, x: Tensor, to: int) -> Handle:
        """Begin to send: `x` may not change before the handle's `wait` returns."""
        self._check(x, to)
        self._count(x)
        return self._start_send(x, to) if x.numel() else _Nothing()

    def irecv(self, into: Tensor, source: int) -> Handle:
        """Begin to receive: `into` is filled when the handle's `wait` returns, not before."""
        self._check(into, source)
        return self._start_receive(into, source) if into.numel() else _Nothing()

    def send(self, x: Tensor, to: int) -> None:
        """Send `x`, and wait until it may change."""
        self.isend(x, to).wait()

    def receive(self, into: Tensor, source: int) -> Tensor:
        """Fill `into` with what `source` sent, and return it."""
        self.irecv(into, source).wait()
        return into

    def exchange(self, x: Tensor, to: int, into: Tensor, source: int) -> Tensor:
        """Send `x` to one rank while `into` is filled by another; return `into`."""
        if x.numel() and into.numel():
            self._check(x, to)
            self._check(into, source)
            self._count(x)
            handles = self._start_exchange(x, to, into, source)
        else:
            handles = [self.isend(x, to), self.irecv(into, source)]
        for handle in handles:
            handle.wait()
        return into

    @contextmanager
    def counting(self, kind: str) -> Iterator[None]:
        """Count one call of `kind`, and to it all that is sent within; the outermost kind counts.

        >>> from nanovllm.parallel.threads import run_ranks
        >>> def work(comm):
        ...     with comm.counting("all_reduce"), comm.counting("all_gather"):
        ...         pass
        ...     return comm.counts.by_kind
        >>> run_ranks(1, work)
        [{'all_reduce': Count(calls=1, messages=0, bytes=0)}]
        """
        if self.counts.kind != "send":
            yield
            return
        self.counts.kind = kind
        self.counts[kind].calls += 1
        try:
            yield
        finally:
            self.counts.kind = "send"

    def _count(self, x: Tensor) -> None:
        count = self.counts[self.counts.kind]
        count.messages += bool(x.numel())
        count.bytes += x.nbytes

    def _check(self, x: Tensor, other: int) -> None:
        if not 0 <= other < self.size or other == self.rank:
            raise ParallelError(
                f"rank {self.rank} of {self.size} has no line to rank {other}; "
                f"name another rank from 0 to {self.size - 1}."
            )
        if not x.is_contiguous():
            raise ParallelError(
                f"a tensor {list(x.shape)} with strides {list(x.stride())} is not contiguous, and "
                "is sent as it lies in memory; send x.contiguous()."
            )


class _Nothing:
    """An empty tensor is there at once."""

    def wait(self) -> None: ...


class Subgroup(Communicator):
    """Some ranks of a communicator, numbered from 0 in the order given, with counts of their own.

    >>> from nanovllm.parallel.threads import run_ranks
    >>> run_ranks(4, lambda comm: Subgroup(comm, [comm.rank % 2, comm.rank % 2 + 2]).rank)
    [0, 0, 1, 1]
    """

    def __init__(self, parent: Communicator, ranks: list[int]) -> None:
        if parent.rank not in ranks or len(set(ranks)) != len(ranks):
            raise ParallelError(
                f"a group {ranks} for rank {parent.rank} must hold that rank, and each only once."
            )
        super().__init__(ranks.index(parent.rank), len(ranks))
        self.parent, self.ranks = parent, ranks

    def _start_send(self, x: Tensor, to: int) -> Handle:
        return self.parent._start_send(x, self.ranks[to])

    def _start_receive(self, into: Tensor, source: int) -> Handle:
        return self.parent._start_receive(into, self.ranks[source])

    def _start_exchange(self, x: Tensor, to: int, into: Tensor, source: int) -> list[Handle]:
        return self.parent._start_exchange(x, self.ranks[to], into, self.ranks[source])
