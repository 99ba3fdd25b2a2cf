"""What executor and worker are to each other, to the engine, and to a rank's share (given).

`executor.py` and `worker.py` start empty: which messages they exchange is the student's choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nanovllm.parallel.errors import ExecutorDied
from nanovllm.parallel.line import Line


@dataclass(frozen=True)
class RankFacts:
    """What a rank says of itself when it is ready.

    answers: whether the results of its share are those of the call; true of one rank. checkpoint:
    a mark of the files that it read, equal where they are equal. num_blocks: blocks of K and V for
    which it has memory. weight_bytes, block_bytes: bytes of its weights, and of one block there.
    """

    rank: int
    answers: bool
    checkpoint: str
    num_blocks: int
    weight_bytes: int
    block_bytes: int


def why_unfit(ranks: Sequence[RankFacts]) -> str | None:
    """Why ranks with these facts cannot work together, as a part of a sentence; None if they can.

    >>> why_unfit([RankFacts(0, True, "a", 8, 100, 10), RankFacts(1, True, "a", 8, 100, 10)])
    'one rank must answer, but 2 do'
    """
    first = ranks[0]
    for facts in ranks:
        if facts.checkpoint != first.checkpoint:
            return (
                f"rank {facts.rank} has read another checkpoint than rank {first.rank}; give all "
                "ranks the same files, and do not change them meanwhile"
            )
        if facts.num_blocks < 1:
            return f"rank {facts.rank} has no memory for a block of K and V; free some"
    answering = sum(facts.answers for facts in ranks)
    return None if answering == 1 else f"one rank must answer, but {answering} do"


class Share(Protocol):
    """A rank's part of the model and of K and V. All its methods but `reserve` are the caller's
    affair: the executor knows them by name only."""

    facts: RankFacts

    def reserve(self, num_blocks: int) -> None:
        """Make the cache, of so many blocks. The first that is called, and once."""


class RankHandle(Protocol):
    """A rank as the driver sees it (launch.py)."""

    rank: int
    line: Line

    @property
    def alive(self) -> bool:
        """Whether it runs. May be asked in any thread."""
        ...

    def why_ended(self) -> str:
        """What is known about its end, as a part of a sentence: "killed by signal 9"."""
        ...

    def stop(self, grace: float) -> None:
        """Wait for its end so many seconds, then kill it; when this returns, it is gone."""


@dataclass(frozen=True)
class RankRow:
    """A rank as the dashboard shows it.

    messages: `line.sent`, all that was sent to it since the start. last_call: the number of the
    last call that it has answered, in calls of this executor from 1 on (`reserve` is the first), 0
    before.
    """

    rank: int
    weight_bytes: int
    kv_bytes: int
    messages: int
    last_call: int

    @classmethod
    def of(cls, handle: RankHandle, facts: RankFacts, num_blocks: int, last_call: int) -> RankRow:
        """The row of a rank that was given so many blocks."""
        kv_bytes = facts.block_bytes * num_blocks
        return cls(handle.rank, facts.weight_bytes, kv_bytes, handle.line.sent, last_call)


class WorkerFunction(Protocol):
    """`worker.run_worker(line, load)`: a rank's whole life.

    Loads its share, says so, then does what comes over the line until the line is closed: it
    returns then, and does not raise. It answers every message by exactly one, and nothing else.

    - Every call of the share runs in `torch.inference_mode()`, which is a thread's own.
    - Only the rank that answers sends results back; the others send a few bytes.
    - What `load` or a call raises (an Exception) goes back as an error, and so does a result that
      cannot be pickled. After a call that raised it goes on; when `load` raised, it returns.
    - What is sent is a copy: a share may write over its result in its next call.
    """

    def __call__(self, line: Line, load: Any) -> None:
        """load() gives the Share."""


class ExecutorInterface(Protocol):
    """`executor.Executor(ranks, *, timeout=300.0, start_timeout=300.0, grace=5.0)`: calls every
    rank's share.

    Making one waits until all ranks are ready, and gives each the same number of blocks: the
    least of those that they have memory for. It raises

    - what `load` or `reserve` raised, if it raised the same kind of error on all ranks: the error
      of any one of them;
    - ExecutorDied, as `call` does, if it raised on some of them; if the ranks do not fit
      together (`why_unfit`); if one ends, or says nothing for `start_timeout` seconds (for
      `reserve`: for that long, or for `timeout`).

    All ranks are gone whenever it raises.

    Calls come from one thread at a time, not always the same one; `failure` and `rows` may be read
    by any thread at any time.
    """

    num_blocks: int  # blocks of K and V that every rank has

    def __init__(
        self,
        ranks: Sequence[Any],
        *,
        timeout: float = 300.0,
        start_timeout: float = 300.0,
        grace: float = 5.0,
    ) -> None:
        """ranks: a RankHandle of each, in order of rank."""

    def call(self, method: str, *args: Any) -> Any:
        """Call `method(*args)` on every rank's share; what the rank returned that answers.

        One message to each rank, and one back from each. It is over when all have answered.
        Arguments that cannot be pickled raise what pickle raises, before anything is sent; those
        that no rank can unpickle raise what that raises there.

        Raises:
            what the method raised, if it raised the same kind of error on all ranks: the executor
                goes on. The error of any one of them, by choice. Same type, same message; a
                RuntimeError that holds both where pickle does not give the error back as it was
                (`wire.portable`).
            ExecutorDied: it raised on some ranks, and the others did not say so within `grace`
                seconds after the first (an answer without an error may end it before that); a rank
                ended (noticed within a second, once all ranks have the call), said nothing for
                `timeout` seconds, or answered a call twice or before it was asked (noticed in
                this call or the next). The sentence names a rank that is the reason: one that
                raised, with its message; one that ended, with `why_ended()` if it was waited for;
                one that said nothing, or answered wrongly. All ranks are gone. Every further call
                raises ExecutorDied at once.

        A call that is interrupted (KeyboardInterrupt) while it waits was not in vain: the next
        one throws its late answers away. If it is interrupted while it sends, the executor dies.
        """
        ...

    @property
    def failure(self) -> ExecutorDied | None:
        """Why no call can succeed: it died, it was closed, or a rank has ended meanwhile."""
        ...

    def rows(self) -> list[RankRow]:
        """Each rank in numbers, in order of rank; also after the end."""
        ...

    def close(self) -> None:
        """End all ranks; they are gone when it returns. May be called twice, and at any time."""
