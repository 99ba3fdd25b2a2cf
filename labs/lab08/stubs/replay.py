"""A policy on recorded texts: what it would have brought, without a model (given)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nanovllm.batching.request import Request
from nanovllm.batching.simulated import SimulatedSequence
from nanovllm.speculative.costs import Costs
from nanovllm.speculative.guess_policy import FixedPolicy, GuessPolicy
from nanovllm.speculative.proposer import Guesses


@dataclass(frozen=True)
class RecordedText:
    """What guesses would have come to at each token of a text.

    found[p]: how many guesses there are for token p and those behind it, if all before p are
    known; right[p]: the first so many of them are right. drafted: they cost forwards of a draft
    model.
    """

    found: tuple[int, ...]
    right: tuple[int, ...]
    drafted: bool = True
    kind: str = ""

    def __len__(self) -> int:
        return len(self.right)

    @classmethod
    def of(cls, right: Iterable[bool], kind: str = "", most: int = 8) -> RecordedText:
        """A draft model's guesses, `most` at each token: whether the one for token p is right.

        >>> RecordedText.of([True, True, False, True]).right
        (2, 1, 0, 1)
        """
        places, run = [], 0
        for one in reversed(list(right)):
            run = run + 1 if one else 0
            places.append(min(run, most))
        return cls((most,) * len(places), tuple(reversed(places)), True, kind)


def read_texts(path: Path, way: str) -> list[RecordedText]:
    """The texts of a record in this lab's folder, guessed in one way: "draft" or "ngram"."""
    return [
        RecordedText(tuple(map(int, found)), tuple(map(int, right)), way == "draft", kind)
        for kind, guessed, found, right in json.loads(path.read_text())
        if guessed == way
    ]


@dataclass(frozen=True)
class Replay:
    """What came of it: simulated seconds, tokens, guesses made and those that stood."""

    seconds: float
    tokens: int
    guesses: int
    accepted: int
    wanted: tuple[dict[int, int], ...]  # a step: what the policy wants, by number of the text


def replay(
    texts: Sequence[RecordedText],
    policy: GuessPolicy,
    costs: Costs,
    batch: int = 1,
    most: int = 8,
    before: Callable[[int], None] = lambda step: None,
) -> Replay:
    """Run texts through a policy, `batch` at a time, in order.

    A step costs `costs.base`, `costs.token` for each token computed, and what drafting costs.
    before: is told the number of each step before it.
    """
    waiting = [
        Request(number, SimulatedSequence(number, 1, len(text)), 0.0, len(text))
        for number, text in enumerate(texts)
    ][::-1]
    running: list[Request] = []
    seconds, tokens, guesses, accepted, story = 0.0, 0, 0, 0, []
    while waiting or running:
        before(len(story))
        while waiting and len(running) < batch:
            running.append(waiting.pop())
        limits = [min(most, len(texts[r.number]) - r.num_output_tokens - 1) for r in running]
        wanted = policy.lengths(tuple(running), tuple(limits), len(running))
        story.append({r.number: count for r, count in zip(running, wanted, strict=True)})
        found = [
            max(min(count, limit, texts[r.number].found[r.num_output_tokens]), 0)
            for r, count, limit in zip(running, wanted, limits, strict=True)
        ]
        drafted = [
            count if texts[r.number].drafted else 0 for r, count in zip(running, found, strict=True)
        ]
        seconds += costs.base + costs.token * (len(running) + sum(found)) + costs.drafting(drafted)
        for request, count in zip(list(running), found, strict=True):
            text = texts[request.number]
            stood = min(count, text.right[request.num_output_tokens])
            if count:
                source = "draft" if text.drafted else "ngram"
                policy.judged(request, Guesses((0,) * count, source), stood)
            guesses, accepted, tokens = guesses + count, accepted + stood, tokens + stood + 1
            for _ in range(stood + 1):
                request.sequence.append()
            if request.sequence.finished:
                running.remove(request)
                policy.forget(request)
    return Replay(seconds, tokens, guesses, accepted, tuple(story))


def gain(
    texts: Sequence[RecordedText],
    policy: GuessPolicy,
    costs: Costs,
    batch: int = 1,
    most: int = 8,
) -> float:
    """How many times faster than without guesses, on the same texts and costs."""
    without = replay(texts, FixedPolicy(0), costs, batch, most)
    return without.seconds / replay(texts, policy, costs, batch, most).seconds
