"""Which tokens may come next where the text must follow a grammar: llguidance's matcher (given)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from nanovllm.generation.errors import RequestError

if TYPE_CHECKING:
    from llguidance import LLMatcher

LONGEST_REASON = 300


class Grammar:
    """Which tokens may follow those of one sample: depends on these tokens alone.

    It keeps its place behind the tokens of the last call, so that the next one is short: tokens
    may have been added since, or taken back. Any thread may call it.
    """

    def __init__(self, start: LLMatcher, ends: Sequence[int], first: Bool[Tensor, " V"]) -> None:
        self._start, self._ends, self._first = start, frozenset(ends), first
        self._only_ends = torch.zeros_like(first)
        self._only_ends[list(ends)] = True
        self._lock = threading.Lock()
        self._begin()

    def fresh(self) -> Grammar:
        """The same grammar for another sample."""
        return Grammar(self._start, tuple(self._ends), self._first)

    def _begin(self) -> None:
        self._matcher = self._start.deep_copy()
        self._tokens: list[int] = []  # that the matcher stands behind: no end among them
        self._allowed: Bool[Tensor, " V"] | None = self._first  # there

    def allowed(self, token_ids: Sequence[int]) -> Bool[Tensor, " V"] | None:
        """The tokens that may follow; None where these tokens break the grammar themselves.

        Behind an end token only end tokens may follow. Raises RequestError where the grammar
        becomes too large to follow.
        """
        with self._lock:
            same = self._num_same(token_ids)
            new = list(token_ids[same:])
            until = next((i for i, token in enumerate(new) if token in self._ends), len(new))
            if not self._go_on(same, new[:until]):
                return None
            if until < len(new):
                return self._only_ends
            if self._allowed is None:
                self._allowed = next_tokens(self._matcher, len(self._first))
                self._check()
            return self._allowed

    def _num_same(self, token_ids: Sequence[int]) -> int:
        """How many tokens the matcher need not be told again."""
        known = len(self._tokens)
        if list(token_ids[:known]) == self._tokens:
            return known
        pairs = enumerate(zip(token_ids, self._tokens, strict=False))
        return next((i for i, (a, b) in pairs if a != b), min(known, len(token_ids)))

    def _go_on(self, same: int, new: list[int]) -> bool:
        """Keep the first tokens, and consume the new ones; whether the grammar takes them all."""
        gone = len(self._tokens) - same
        if not gone and not new:
            return True
        if gone:
            self._matcher.rollback(gone)
        taken = self._matcher.try_consume_tokens(new) if new else 0
        self._tokens[same:], self._allowed = new[:taken], None
        self._check()
        return taken == len(new)

    def _check(self) -> None:
        """Begin anew, and say so, where a limit of the matcher was hit."""
        if self._matcher.is_error():
            why = reason(self._matcher.get_error())
            self._begin()
            raise RequestError(f"structured_outputs cannot be followed any further: {why}.")


def next_tokens(matcher: LLMatcher, size: int) -> Bool[Tensor, " V"]:
    """A matcher's mask over so many tokens."""
    bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
    return torch.from_numpy(np.unpackbits(bits, count=size, bitorder="little").view(bool))


def reason(error: str) -> str:
    """One of llguidance's errors as a part of a sentence: its beginning and its end."""
    said = " ".join(error.split("<backtrace>")[0].replace("<non-verbose/>", "").split())
    said = said if len(said) <= LONGEST_REASON else f"{said[:200]} ... {said[-100:]}"
    return said.rstrip(". ")
