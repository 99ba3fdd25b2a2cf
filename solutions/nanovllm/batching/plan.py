"""What one step computes: an immutable list of chunks, made before anything is computed."""

from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from nanovllm.batching.request import Request


class Chunk(NamedTuple):
    """Tokens start .. start + length - 1 of one request, to be computed in one step.

    A prompt, a part of one, the newest token of a request in decode, and a recompute after
    preemption are all the same: computed tokens chase the total.
    """

    request: Request
    start: int
    length: int
    total: int  # tokens that the request had when the plan was made

    @property
    def end(self) -> int:
        """One past the last token."""
        return self.start + self.length

    @property
    def completes(self) -> bool:
        """Whether the request's next token can be drawn after it: nothing is left to compute.

        >>> Chunk(None, start=4, length=4, total=10).completes
        False
        >>> Chunk(None, start=8, length=2, total=10).completes
        True
        """
        return self.end == self.total


@dataclass(frozen=True)
class Plan:
    """One step: what is computed, and who came into the batch and who left it for that."""

    chunks: tuple[Chunk, ...] = ()
    admitted: tuple[Request, ...] = ()
    preempted: tuple[Request, ...] = ()
    budget: int = 0  # tokens that the step was allowed

    @property
    def num_tokens(self) -> int:
        """Tokens that the step computes."""
        return sum(chunk.length for chunk in self.chunks)

    @property
    def rows(self) -> list[range]:
        """Which of the step's T tokens are those of each chunk, one chunk after another.

        >>> Plan((Chunk(None, 4, 1, 5), Chunk(None, 0, 6, 9))).rows
        [range(0, 1), range(1, 7)]
        """
        ends = list(accumulate(chunk.length for chunk in self.chunks))
        return [range(end - c.length, end) for c, end in zip(self.chunks, ends, strict=True)]

    @property
    def budget_left(self) -> int:
        """Tokens that the step may still compute: what is left of its budget.

        >>> Plan((Chunk(None, 4, 1, 5), Chunk(None, 0, 6, 9)), budget=16).budget_left
        9
        """
        return max(self.budget - self.num_tokens, 0)
