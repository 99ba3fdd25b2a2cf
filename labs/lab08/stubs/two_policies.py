"""Prompt lookup and a draft model side by side, each under a policy of its own (given).

A guess of the one costs a forward of the draft model, and one of the other next to nothing; and how
many of the one stand says nothing about the other. One policy for both would know neither.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from nanovllm.batching.request import Request
from nanovllm.speculative.costs import Costs
from nanovllm.speculative.credit import Credit
from nanovllm.speculative.guess_policy import GuessPolicy
from nanovllm.speculative.proposer import Ask, Guesses, NgramThenDraft, Proposer

SOURCES: tuple[str, ...] = ("ngram", "draft")
NAP = 16  # steps in a row at most in which one who wants nothing is not asked
HOLD = 3  # steps in which a source is not asked that wanted the same twice, of everybody


class TwoPolicies:
    """A GuessPolicy that wants as many guesses as either of its two; `wanted`: what each wants."""

    def __init__(
        self,
        make_policy: Callable[[Costs], GuessPolicy],
        costs: Costs,
        credit: Credit | None = None,
    ) -> None:
        """costs: of steps and drafts, learnt as they run. credit: of both sources; one that may not
        guess now is not asked."""
        self.costs, self._undrafted, self.credit = costs, Costs(), credit
        self.policies = {"ngram": make_policy(self._undrafted), "draft": make_policy(costs)}
        self._asked = SOURCES  # in this step
        self._requests: Sequence[Request] = ()
        # steps in which a source is not asked, as long as the same requests run
        self._naps, self._holds = dict.fromkeys(SOURCES, 0), dict.fromkeys(SOURCES, 0)
        self._counts: dict[str, list[int]] = {}  # what each wanted when it was asked
        self.wanted: dict[Request, dict[str, int]] = {}

    def lengths(self, requests: Sequence[Request], most: Sequence[int], tokens: int) -> list[int]:
        """As GuessPolicy."""
        self._undrafted.base, self._undrafted.token = self.costs.base, self.costs.token
        silent = self.credit.silent(len(requests)) if self.credit and requests else ()
        self._asked = tuple(source for source in SOURCES if source not in silent)
        self.wanted = {request: {} for request in requests}
        if requests != self._requests:
            self._requests, self._naps = requests, dict.fromkeys(SOURCES, 0)
            self._holds, self._counts = dict.fromkeys(SOURCES, 0), {}
        for source in self._asked:
            if self._naps[source]:
                self._naps[source] -= 1
                continue
            counts = self._ask(source, requests, most, tokens)
            for request, count in zip(requests, counts, strict=True):
                self.wanted[request][source] = count
        return [max(counts.values(), default=0) for counts in self.wanted.values()]

    def _ask(
        self, source: str, requests: Sequence[Request], most: Sequence[int], tokens: int
    ) -> list[int]:
        """What a source's policy wants, or wanted a few steps ago."""
        if self._holds[source]:
            self._holds[source] -= 1
            return list(map(min, self._counts[source], most))
        counts = self.policies[source].lengths(requests, most, tokens)
        if not any(counts):
            self._naps[source] = self._rest(source, NAP)
        elif all(counts) and counts == self._counts.get(source):  # who has none waits for a trial
            self._holds[source] = HOLD
        self._counts[source] = counts
        return counts

    def judged(self, request: Request, guesses: Guesses, accepted: int) -> None:
        """As GuessPolicy: the policy of who guessed hears it."""
        self.policies[guesses.source].judged(request, guesses, accepted)

    def rest(self, steps: int) -> int:
        """As GuessPolicy; where the draft's allows fewer, lookup's has counted a few too many."""
        for source in self._asked:
            nap = self._naps[source]
            steps = min(steps, nap) if nap else self._rest(source, steps)
        for source in self._asked:
            self._naps[source] = max(self._naps[source] - steps, 0)
        return steps

    def _rest(self, source: str, steps: int) -> int:
        return getattr(self.policies[source], "rest", lambda steps: 0)(steps)

    def forget(self, request: Request) -> None:
        """As GuessPolicy."""
        for policy in self.policies.values():
            policy.forget(request)


class WantedOfEach(NgramThenDraft):
    """NgramThenDraft that asks each source for what its policy wants of it."""

    def __init__(self, lookup: Proposer, draft: Proposer, policy: TwoPolicies) -> None:
        super().__init__(lookup, draft)
        self.policy = policy

    def propose(self, asks: Sequence[Ask]) -> list[Guesses]:
        """As Proposer."""
        found = {ask.request: Guesses() for ask in asks}
        self._ask("ngram", self.lookup, asks, found)
        unsure = [ask for ask in asks if found[ask.request].match < self.sure]
        self._ask("draft", self.draft, unsure, found)
        return list(found.values())

    def _ask(
        self, source: str, proposer: Proposer, asks: Sequence[Ask], found: dict[Request, Guesses]
    ) -> None:
        counts = [min(a.most, self.policy.wanted[a.request].get(source, 0)) for a in asks]
        wanted = [Ask(a.request, n) for a, n in zip(asks, counts, strict=True) if n > 0]
        for ask, guesses in zip(wanted, proposer.propose(wanted) if wanted else (), strict=True):
            if guesses.token_ids:
                own = guesses.source == source
                found[ask.request] = guesses if own else replace(guesses, source=source)
