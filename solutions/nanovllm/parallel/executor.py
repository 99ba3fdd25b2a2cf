"""`Executor`: one call for all ranks, which ends by their answers or by their end."""

### BEGIN SOLUTION
import time
from collections.abc import Collection, Sequence
from typing import Any, NoReturn

from nanovllm.parallel.errors import ExecutorDied
from nanovllm.parallel.executor_interface import RankFacts, RankHandle, RankRow, why_unfit
from nanovllm.parallel.line import LineError, LineTimeout, ready
from nanovllm.parallel.wire import from_bytes, to_bytes

POLL = 0.2  # seconds between two looks at whether the silent ranks are alive
FAREWELL = 5.0  # seconds that a rank gets to leave by itself

Reply = tuple[bool, Any]  # whether the call raised there; the value, or the error


class Executor:
    """Calls have numbers, and so have the answers to them; 0 is what a rank says when ready."""

    def __init__(
        self,
        ranks: Sequence[RankHandle],
        *,
        timeout: float = 300.0,
        start_timeout: float = 300.0,
        grace: float = 5.0,
    ) -> None:
        self.ranks, self.timeout, self.grace = list(ranks), timeout, grace
        self._number = 0
        self._answered = dict.fromkeys((handle.rank for handle in self.ranks), -1)
        self._dead: str | None = None
        self._closed = False
        self.facts: list[RankFacts] = []
        self.num_blocks = 0
        try:
            replies = self._answers(start_timeout)
            self._raise_errors(replies)
            self.facts = [facts for _, facts in replies]
            if (why := why_unfit(self.facts)) is not None:
                self._die(why)
            self.num_blocks = min(facts.num_blocks for facts in self.facts)
            self.call("reserve", self.num_blocks)
        except BaseException:
            self.close()
            raise

    def call(self, method: str, *args: Any) -> Any:
        if (why := self._why()) is not None:
            self._die(why)
        data = to_bytes((self._number + 1, method, to_bytes(args)))
        self._number += 1
        self._send(data)
        replies = self._answers(self.timeout)
        self._raise_errors(replies)
        return next(
            value for facts, (_, value) in zip(self.facts, replies, strict=True) if facts.answers
        )

    def _send(self, data: bytes) -> None:
        """One message to each rank; half a call would leave them out of step."""
        handle = self.ranks[0]
        try:
            for handle in self.ranks:
                handle.line.send(data)
        except LineTimeout:
            self._die(f"rank {handle.rank} does not read call {self._number}")
        except LineError:
            self._die(f"rank {handle.rank} has ended ({handle.why_ended()})")
        except BaseException:
            self._dead = f"call {self._number} was interrupted before all ranks had it"
            self.close(at_once=True)
            raise

    def _answers(self, timeout: float) -> list[Reply]:
        """The answer of every rank to the newest call, in order of rank."""
        waiting = {handle.line: handle for handle in self.ranks}
        replies: dict[int, Reply] = {}
        deadline = time.monotonic() + timeout
        raised = False
        while waiting:
            found = ready(list(waiting), min(POLL, max(0.0, deadline - time.monotonic())))
            for line in found:
                reply = self._read(waiting[line])
                if reply is None:
                    continue
                replies[waiting.pop(line).rank] = reply
                if reply[0] and not raised:
                    raised = True
                    deadline = min(deadline, time.monotonic() + self.grace)
            if not found:
                self._look(list(waiting.values()), replies, time.monotonic() > deadline)
        return [replies[handle.rank] for handle in self.ranks]

    def _read(self, handle: RankHandle) -> Reply | None:
        """A rank's answer to the newest call; None if it is a late one to a call given up."""
        try:
            number, raised, value = from_bytes(handle.line.receive())
        except LineTimeout:
            self._die(f"rank {handle.rank} stopped in the middle of its answer")
        except LineError:
            self._die(f"rank {handle.rank} has ended ({handle.why_ended()})")
        if not self._answered[handle.rank] < number <= self._number:
            self._die(
                f"rank {handle.rank} answered call {number}, but call {self._number} was asked and "
                f"{self._answered[handle.rank]} was answered before"
            )
        self._answered[handle.rank] = number
        return (raised, value) if number == self._number else None

    def _look(
        self, silent: Collection[RankHandle], replies: dict[int, Reply], too_late: bool
    ) -> None:
        """Die if a rank has ended, or the silent ones have had their time."""
        errors = {rank: error for rank, (raised, error) in replies.items() if raised}
        ended = self._ended(set(errors))  # who could not load has said so and left
        if ended:
            self._die(ended)
        if too_late:
            if errors:
                self._die_apart(*next(iter(errors.items())))
            names = ", ".join(str(handle.rank) for handle in silent)
            self._die(f"rank {names} did not answer call {self._number} in time")

    def _raise_errors(self, replies: list[Reply]) -> None:
        """What all ranks raised alike is the caller's; ranks that differ are out of step."""
        errors = {rank: error for rank, (raised, error) in enumerate(replies) if raised}
        if not errors:
            return
        rank, error = next(iter(errors.items()))
        if len(errors) == len(replies) and len({type(e) for e in errors.values()}) == 1:
            raise error
        self._die_apart(rank, error)

    def _die_apart(self, rank: int, error: Exception) -> NoReturn:
        self._die(
            f"rank {rank} raised {type(error).__name__}: {error} in call {self._number}, and not "
            "all ranks did"
        )

    def _ended(self, excused: Collection[int] = ()) -> str | None:
        """Which rank is not there any more."""
        for handle in self.ranks:
            if handle.rank not in excused and not handle.alive:
                return f"rank {handle.rank} has ended ({handle.why_ended()})"
        return None

    def _die(self, why: str) -> NoReturn:
        """Nothing can be asked of ranks that are not all there: end those that are left."""
        self._dead = why
        self.close(at_once=True)
        raise _died(why)

    def _why(self) -> str | None:
        return self._dead or self._ended()

    @property
    def failure(self) -> ExecutorDied | None:
        why = self._why()
        return None if why is None else _died(why)

    def rows(self) -> list[RankRow]:
        return [
            RankRow.of(handle, facts, self.num_blocks, self._answered[handle.rank])
            for handle, facts in zip(self.ranks, self.facts, strict=True)
        ]

    def close(self, *, at_once: bool = False) -> None:
        if self._closed:
            return
        self._closed, self._dead = True, self._dead or "the executor was closed"
        for handle in self.ranks:
            handle.line.close()
        for handle in self.ranks:
            handle.stop(0.0 if at_once else FAREWELL)


def _died(why: str) -> ExecutorDied:
    return ExecutorDied(f"The ranks cannot go on: {why}; start them again.")


### END SOLUTION
