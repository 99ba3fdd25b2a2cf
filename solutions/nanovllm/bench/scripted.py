"""Guesses that cost nothing: those of another run made once more, or partly right ones."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from nanovllm.speculative.proposer import Guesses

if TYPE_CHECKING:
    from nanovllm.batching.request import Request
    from nanovllm.speculative.proposer import Ask, Proposer


class Kept:
    """A proposer whose guesses are kept, by request and place, to be made again for nothing."""

    def __init__(self, inner: Proposer) -> None:
        self.inner, self.made = inner, {}

    def propose(self, asks: Sequence[Ask]) -> list[Guesses]:
        found = self.inner.propose(asks)
        for ask, guesses in zip(asks, found, strict=True):
            self.made[_place(ask.request)] = guesses.token_ids
        return found

    def forget(self, request: Request) -> None:
        self.inner.forget(request)


class Scripted:
    """Guesses that are known beforehand, by request and place."""

    def __init__(self, made: Mapping[tuple[int, int], Sequence[int]]) -> None:
        self.made = made

    def propose(self, asks: Sequence[Ask]) -> list[Guesses]:
        found = (self.made.get(_place(ask.request), ())[: ask.most] for ask in asks)
        return [Guesses(tuple(token_ids), "script") for token_ids in found]

    def forget(self, request: Request) -> None:
        pass


def _place(request: Request) -> tuple[int, int]:
    return request.sequence.request_id, len(request.sequence.output_token_ids)


def partly_right(texts: Sequence[Sequence[int]], rate: float, most: int) -> Scripted:
    """Guesses of texts that are known, each right with this chance, whatever is before it."""
    rng, made = random.Random(0), {}
    for number, text in enumerate(texts):
        told = [token if rng.random() < rate else token - 1 or 1 for token in text]
        made |= {(number, place): told[place : place + most] for place in range(len(text))}
    return Scripted(made)
