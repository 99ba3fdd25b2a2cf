"""A policy on recorded texts: what it would have brought, without a model (given)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nanovllm.batching.request import Request
from nanovllm.batching.simulated import SimulatedSequence
from nanovllm.speculative.costs import Costs
from nanovllm.speculative.guess_policy import FixedPolicy, GuessPolicy
from nanovllm.speculative.proposer import Guesses


@dataclass(frozen=True)
class Replay:
    """What came of it: simulated seconds, tokens, guesses made and those that stood."""

    seconds: float
    tokens: int
    guesses: int
    accepted: int
    wanted: tuple[tuple[int, ...], ...]  # a step: the guesses of each request


def replay(
    texts: Sequence[Sequence[bool]],
    policy: GuessPolicy,
    costs: Costs,
    batch: int = 1,
    most: int = 8,
) -> Replay:
    """Run recorded texts through a policy, `batch` at a time, in order.

    texts[i][p]: whether a guess for token p of text i is right, if all before it are known. A step
    costs `costs.base`, `costs.token` for each token computed, and `costs.draft` for each guess.
    """
    waiting = [
        Request(number, SimulatedSequence(number, 1, len(text)), 0.0, len(text))
        for number, text in enumerate(texts)
    ]
    running: list[Request] = []
    seconds, tokens, guesses, accepted, story = 0.0, 0, 0, 0, []
    while waiting or running:
        while waiting and len(running) < batch:
            running.append(waiting.pop(0))
        left = [len(texts[r.number]) - r.num_output_tokens for r in running]
        limits = [min(most, more - 1) for more in left]
        wanted = policy.lengths(tuple(running), tuple(limits), len(running))
        counts = [max(min(w, limit), 0) for w, limit in zip(wanted, limits, strict=True)]
        story.append(tuple(counts))
        guesses += sum(counts)
        seconds += costs.base + costs.token * (len(running) + sum(counts))
        seconds += costs.draft * sum(counts)
        for request, count in zip(list(running), counts, strict=True):
            text, at = texts[request.number], request.num_output_tokens
            stood = 0
            while stood < count and text[at + stood]:
                stood += 1
            if count:
                policy.judged(request, Guesses((0,) * count, "draft"), stood)
            accepted += stood
            tokens += stood + 1
            for _ in range(stood + 1):
                request.sequence.append()
            if request.sequence.finished:
                running.remove(request)
                policy.forget(request)
    return Replay(seconds, tokens, guesses, accepted, tuple(story))


def gain(
    texts: Sequence[Sequence[bool]],
    policy: GuessPolicy,
    costs: Costs,
    batch: int = 1,
    most: int = 8,
) -> float:
    """How many times faster than without guesses, on the same texts and costs."""
    without = replay(texts, FixedPolicy(0), costs, batch, most)
    return without.seconds / replay(texts, policy, costs, batch, most).seconds
