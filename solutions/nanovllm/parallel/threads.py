"""Ranks as threads of one process: for checks, and to see what ranks do (given)."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from nanovllm.parallel.communicator import Communicator
from nanovllm.parallel.errors import ParallelError, RankDied

T = TypeVar("T")


@dataclass
class _Message:
    """A tensor on its way; its sender waits until it is taken."""

    tensor: Tensor
    taken: bool = False


@dataclass
class _Wanted:
    """A place for a message; what came waits here until its receiver does."""

    came: Tensor | None = None


class _Line:
    """From one rank to another: what was sent, and what is wanted, each in its order."""

    def __init__(self) -> None:
        self.sent: deque[_Message] = deque()
        self.wanted: deque[_Wanted] = deque()

    def match(self) -> None:
        """Hand over what is both sent and wanted."""
        while self.sent and self.wanted:
            message = self.sent.popleft()
            self.wanted.popleft().came = message.tensor.clone()
            message.taken = True


class _World:
    """The lines between ranks, and who waits; notices at once when nobody can go on.

    A rank waits until something is so. Once every rank that has not ended waits in vain, or one
    has died, all of them get the same `RankDied`.
    """

    def __init__(self, size: int, timeout: float) -> None:
        self.changed = threading.Condition()
        self.lines: dict[tuple[int, int], _Line] = defaultdict(_Line)
        self.waiting: dict[int, tuple[Callable[[], bool], str]] = {}
        self.alive = set(range(size))
        self.timeout = timeout
        self.died = ""

    def wait_until(self, rank: int, is_so: Callable[[], bool], what: str) -> None:
        """Return when `is_so()`; `what` says what the rank waits for. Raises RankDied."""
        with self.changed:
            self.waiting[rank] = is_so, what
            self.look_for_deadlock()
            in_time = self.changed.wait_for(lambda: is_so() or self.died, self.timeout)
            del self.waiting[rank]
            if not in_time:
                self.fail(f"rank {rank} has waited {self.timeout:g} s {what}; see what it does.")
            if not is_so():
                raise RankDied(self.died)

    def post(self, source: int, to: int, sent: list[_Message], wanted: list[_Wanted]) -> None:
        """Put a message, or the wish for one, on a line."""
        with self.changed:
            line = self.lines[source, to]
            line.sent.extend(sent)
            line.wanted.extend(wanted)
            line.match()
            self.changed.notify_all()

    def look_for_deadlock(self) -> None:
        """End it where every rank that is alive waits, and none for what is so already."""
        stuck = self.alive and self.alive <= self.waiting.keys()
        if stuck and not any(is_so() for is_so, _ in self.waiting.values()):
            who = "; ".join(
                f"rank {rank} {what}" for rank, (_, what) in sorted(self.waiting.items())
            )
            self.fail(f"every rank waits and none can go on: {who}; let sends and receives match.")

    def fail(self, why: str) -> None:
        """Wake everybody with the first reason; call it with the lock held."""
        self.died = self.died or why
        self.changed.notify_all()


@dataclass(frozen=True)
class _Sending:
    comm: ThreadCommunicator
    to: int
    message: _Message

    def wait(self) -> None:
        what = f"for rank {self.to} to receive"
        self.comm.world.wait_until(self.comm.rank, lambda: self.message.taken, what)


@dataclass(frozen=True)
class _Receiving:
    comm: ThreadCommunicator
    source: int
    into: Tensor
    wanted: _Wanted

    def wait(self) -> None:
        rank, into, wanted = self.comm.rank, self.into, self.wanted
        what = f"for rank {self.source} to send"
        self.comm.world.wait_until(rank, lambda: wanted.came is not None, what)
        came = wanted.came
        if (came.numel(), came.dtype) != (into.numel(), into.dtype):
            raise ParallelError(
                f"rank {rank} expects {into.numel()} elements of {into.dtype} from rank "
                f"{self.source}, which sent {came.numel()} of {came.dtype}; let both agree."
            )
        into.view(-1).copy_(came.view(-1))


class ThreadCommunicator(Communicator):
    """One of the ranks that `thread_communicators` makes; a send lasts until it is received."""

    def __init__(self, rank: int, size: int, world: _World) -> None:
        super().__init__(rank, size)
        self.world = world

    def _start_send(self, x: Tensor, to: int) -> _Sending:
        message = _Message(x)
        self.world.post(self.rank, to, [message], [])
        return _Sending(self, to, message)

    def _start_receive(self, into: Tensor, source: int) -> _Receiving:
        wanted = _Wanted()
        self.world.post(source, self.rank, [], [wanted])
        return _Receiving(self, source, into, wanted)

    def end(self, error: BaseException | None = None) -> None:
        """This rank takes part no more; those that wait for it are told."""
        with self.world.changed:
            self.world.alive.discard(self.rank)
            if error is not None:
                self.world.fail(f"rank {self.rank} died of {type(error).__name__}: {error}")
            self.world.look_for_deadlock()


def thread_communicators(size: int, timeout: float = 60.0) -> list[ThreadCommunicator]:
    """The communicators of `size` ranks; each is for one thread, which calls `end` at its end.

    Nobody waits longer than `timeout` seconds for one message.
    """
    world = _World(size, timeout)
    return [ThreadCommunicator(rank, size, world) for rank in range(size)]


def run_ranks(size: int, work: Callable[[Communicator], T], timeout: float = 60.0) -> list[T]:
    """`work(comm)` on `size` ranks at once, each a thread of its own; their results by rank.

    `torch.inference_mode()` and `torch.no_grad()` hold for one thread: enter them in `work`.

    Raises:
        RankDied: the ranks wait for each other, and none can go on.
        Exception: what the first rank to fail raised; the others then wait no longer.

    >>> import torch
    >>> def pass_on(comm):
    ...     right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    ...     return comm.exchange(torch.tensor([comm.rank]), right, torch.empty(1).long(), left)
    >>> run_ranks(3, pass_on)
    [tensor([2]), tensor([0]), tensor([1])]
    """
    comms = thread_communicators(size, timeout)
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(comm: ThreadCommunicator) -> None:
        try:
            results[comm.rank] = work(comm)
        except BaseException as error:
            errors.append(error)
            comm.end(error)
        else:
            comm.end()

    threads = [threading.Thread(target=run, args=(comm,), daemon=True) for comm in comms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise next((error for error in errors if not isinstance(error, RankDied)), errors[0])
    return [results[rank] for rank in range(size)]
