"""Who guesses, and how many: what a policy is asked, and the plainest one (given)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from nanovllm.batching.request import Request
from nanovllm.speculative.proposer import Guesses


class GuessPolicy(Protocol):
    """Decides before each step; learns from what came of it.

    A policy may have `rest(steps)` besides, which is called after a step in which it wanted nothing
    of anybody: for how many of so many further steps nobody need be asked, as long as the same
    requests run. These then count as gone by.
    """

    def lengths(self, requests: Sequence[Request], most: Sequence[int], tokens: int) -> list[int]:
        """How many guesses each request is to have in this step: 0 to its `most`, in order.

        Requests come in any order, may be away for some steps, or be none. tokens: what the step
        computes without guesses, those of prompts too; whether it is used is the policy's choice.
        """
        ...

    def judged(self, request: Request, guesses: Guesses, accepted: int) -> None:
        """Of these guesses of a request, the first `accepted` stood; those behind the first that
        fell were never reached. They may be fewer than wanted; where there are none, it need not
        be called."""

    def forget(self, request: Request) -> None:
        """The request has ended; it may never have been seen."""


class FixedPolicy:
    """Everybody guesses, always as many."""

    def __init__(self, guesses: int) -> None:
        self.guesses = guesses

    def lengths(self, requests: Sequence[Request], most: Sequence[int], tokens: int) -> list[int]:
        """As GuessPolicy."""
        return [min(self.guesses, limit) for limit in most]

    def judged(self, request: Request, guesses: Guesses, accepted: int) -> None:
        """As GuessPolicy."""

    def forget(self, request: Request) -> None:
        """As GuessPolicy."""
