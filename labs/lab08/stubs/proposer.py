"""Who guesses, as the engine sees it (given)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from nanovllm.batching.request import Request

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Ask:
    """Up to `most` guesses are wanted for what follows the newest token of a request."""

    request: Request
    most: int


@dataclass(frozen=True, eq=False)
class Guesses:
    """What may follow a request's newest token, in order.

    source: who guessed ("ngram", "draft"). match: how many of the newest tokens lookup found again,
    0 if it found none. probs [k, V]: the distribution each guess was drawn from; None where each
    was certain (probability 1).
    """

    token_ids: tuple[int, ...] = ()
    source: str = ""
    match: int = 0
    probs: Tensor | None = None

    def first(self, count: int) -> Guesses:
        """The first guesses alone.

        >>> Guesses((5, 6, 7)).first(2).token_ids
        (5, 6)
        """
        if count >= len(self.token_ids):
            return self
        probs = None if self.probs is None else self.probs[:count]
        return Guesses(self.token_ids[:count], self.source, self.match, probs)


class Proposer(Protocol):
    """Guesses for a batch; what it remembers of a request ends with `forget`."""

    def propose(self, asks: Sequence[Ask]) -> list[Guesses]:
        """Guesses for each request, in order; fewer than asked, or none, where it knows no more.

        Requests come in any order: each after any number of new tokens, or none; with a text that
        is long already; and again after a preemption, with all its tokens.
        """
        ...

    def forget(self, request: Request) -> None:
        """The request has ended, or left the batch; it may never have been seen."""


class NgramThenDraft:
    """Prompt lookup where at least `sure` tokens match, the draft model elsewhere."""

    def __init__(self, lookup: Proposer, draft: Proposer, sure: int = 2) -> None:
        self.lookup, self.draft, self.sure = lookup, draft, sure

    def propose(self, asks: Sequence[Ask]) -> list[Guesses]:
        """As Proposer."""
        found = self.lookup.propose(asks)
        unsure = [i for i, guesses in enumerate(found) if guesses.match < self.sure]
        drafted = self.draft.propose([asks[i] for i in unsure]) if unsure else []
        for i, guesses in zip(unsure, drafted, strict=True):
            found[i] = guesses if guesses.token_ids else found[i]
        return found

    def forget(self, request: Request) -> None:
        """As Proposer."""
        self.lookup.forget(request)
        self.draft.forget(request)
