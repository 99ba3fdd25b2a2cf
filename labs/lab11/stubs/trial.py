"""Several engines in one process, and requests for them: a policy in counts (given)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import cast

from nanovllm.batching.engine import Engine
from nanovllm.cluster.open_work import OpenWork
from nanovllm.cluster.routing_interface import BlockIndexInterface, Policy, Query
from nanovllm.generation.events import Finished, TokenGenerated
from nanovllm.generation.params import SamplingParams
from nanovllm.paging.prefix_cache import PrefixStats
from nanovllm.paging.prefix_index import block_hash
from nanovllm.paging.store import PagedStore


@dataclass(frozen=True)
class Ask:
    """A request that arrives before step `step`."""

    step: int
    prompt: tuple[int, ...]
    key: str = ""


@dataclass
class Outcome:
    """What a trial counted: by replica, requests, and prompt tokens asked for and found there; by
    request, steps from its arrival to its first token, and its text."""

    requests: dict[str, int]
    asked: dict[str, int] = field(default_factory=dict)
    found: dict[str, int] = field(default_factory=dict)
    waited: dict[int, int] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    steps: int = 0

    @property
    def hit_share(self) -> float:
        """Prompt tokens that were in a prefix cache, of all."""
        return sum(self.found.values()) / sum(self.asked.values())

    @property
    def busiest(self) -> float:
        """The share of all requests that the busiest replica got."""
        return max(self.requests.values()) / sum(self.requests.values())


def query_of(ask: Ask, block_size: int) -> Query:
    """What a router that knows the tokens sees of a request."""
    hashes, parent = [], b""
    for end in range(block_size, len(ask.prompt) + 1, block_size):
        parent = block_hash(parent, ask.prompt[end - block_size : end], "")
        hashes.append(parent)
    return Query(ask.key, tuple(hashes), len(ask.prompt), block_size)


def run_trial(
    engines: Mapping[str, Engine],
    policy: Policy,
    index: BlockIndexInterface,
    asks: Sequence[Ask],
    params: SamplingParams,
    see: Callable[[int, OpenWork], None] = lambda step, work: None,
) -> Outcome:
    """Answer all requests; in each step those that have arrived are sent, then each engine steps.

    The engines have lab 05's store with a prefix cache. `index` is told what was sent where, as a
    router does that hears nothing of the replicas. see: called after each step.
    """
    work, outcome = OpenWork(policy, index), Outcome(dict.fromkeys(engines, 0))
    block_size = cast(PagedStore, next(iter(engines.values())).store).block_size
    waiting = sorted(enumerate(asks), key=lambda pair: pair[1].step)
    numbers: dict[tuple[str, int], tuple[int, ExitStack]] = {}
    while waiting or numbers:
        while waiting and waiting[0][1].step <= outcome.steps:
            number, ask = waiting.pop(0)
            open_there = ExitStack()
            query = query_of(ask, block_size)
            name = open_there.enter_context(work.on(query, engines))
            index.stored(name, query.hashes)
            outcome.requests[name] += 1
            numbers[name, engines[name].add_request(ask.prompt, params)] = number, open_there
        outcome.steps += 1
        for name, engine in engines.items():
            for event in engine.step() if engine.has_unfinished else ():
                if isinstance(event, TokenGenerated | Finished):
                    number, open_there = numbers[name, event.request_id]
                    outcome.waited.setdefault(number, outcome.steps - asks[number].step)
                    if isinstance(event, Finished):
                        outcome.texts[number] = event.completion.text
                        open_there.close()
                        del numbers[name, event.request_id]
        see(outcome.steps, work)
    for name, engine in engines.items():
        stats = cast(PagedStore, engine.store).prefix_stats or PrefixStats()
        outcome.asked[name], outcome.found[name] = stats.queries, stats.hits
    return outcome
