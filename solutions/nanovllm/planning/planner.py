"""From a trace, a model, a card and an objective to replicas, their settings and their price."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from nanovllm.observability.analysis import prefix_hits
from nanovllm.observability.capacity import (
    bill,
    choose_settings,
    mean_replicas,
    plan_replicas,
)
from nanovllm.observability.capacity_interface import Bill, Plan, Replica, Settings, Slo
from nanovllm.observability.cards import Card, ModelSize, step_cost
from nanovllm.observability.errors import CapacityError
from nanovllm.observability.trace import Trace, between


@dataclass(frozen=True)
class Asked:
    """What is to be planned for; price: dollars an hour of a replica's card."""

    trace: Trace
    model: ModelSize
    card: Card
    slo: Slo
    price: float
    headroom: float = 0.1
    most: int = 64


@dataclass(frozen=True)
class Answer:
    """The settings of a replica, how many there are to be, and the bill of each number tried."""

    asked: Asked
    settings: Settings
    plan: Plan
    bills: Mapping[int, Bill]


@dataclass(frozen=True)
class Variant:
    """The same with something else: replicas, and their bill; `why` if there is no answer."""

    name: str
    note: str
    replicas: int | None = None
    bill: Bill | None = None
    why: str = ""


def busiest(trace: Trace, seconds: float) -> Trace:
    """The part of so many seconds in which most requests arrive; all of a shorter trace.

    >>> from nanovllm.observability.trace import TracedRequest
    >>> [r.time for r in busiest([TracedRequest(t, 1, 1) for t in (0.0, 60.0, 61.0)], 10.0)]
    [0.0, 1.0]
    """
    times = sorted(request.time for request in trace)
    if not times or times[-1] - times[0] < seconds:
        return trace
    ends = [bisect_left(times, time + seconds) for time in times]
    most = max(range(len(times)), key=lambda i: ends[i] - i)
    return between(trace, times[most], times[most] + seconds)


def plan(asked: Asked) -> Answer:
    """Settings by the formulas of lab 13, replicas by its simulation. Raises CapacityError."""
    settings = choose_settings(asked.trace, asked.model, asked.card, asked.slo, asked.headroom)
    found = plan_replicas(asked.trace, replica_of(asked, settings), asked.slo, asked.most)
    bills = {n: bill(asked.trace, n, asked.price) for n in sorted(found.tried)}
    return Answer(asked, settings, found, bills)


def replica_of(asked: Asked, settings: Settings) -> Replica:
    """A replica with these settings."""
    return Replica(
        step_cost(asked.model, asked.card),
        settings.kv_tokens,
        settings.max_num_seqs,
        settings.max_num_batched_tokens,
    )


def variants(answer: Answer) -> Iterator[Variant]:
    """The plan under other assumptions, one by one: a simulation each, which takes its time."""
    asked = answer.asked
    by_mean = mean_replicas(asked.trace, replica_of(asked, answer.settings))
    prices = bill(asked.trace, by_mean, asked.price)
    note = "mean lengths, no bursts, 70 % busy: too few, if traffic is not like that"
    yield Variant("by mean values", note, by_mean, prices)
    yield _variant(
        "mean lengths", "its arrivals, every request as long as the mean", even(asked), asked
    )
    half = replace(asked.model, weight_bytes=asked.model.weight_bytes // 2)
    yield _variant("int8 weights", "half the bytes of weights", replace(asked, model=half), asked)
    blocks = max(len(request.blocks) for request in asked.trace)
    if blocks:
        yield _cached(answer)


def even(asked: Asked) -> Asked:
    """The same with every request as long as the mean."""
    count = len(asked.trace)
    prompt = round(sum(request.prompt for request in asked.trace) / count)
    output = round(sum(request.output for request in asked.trace) / count)
    return replace(
        asked, trace=[replace(r, prompt=max(prompt, 1), output=output) for r in asked.trace]
    )


def _cached(answer: Answer) -> Variant:
    """Prompts shorter by the share of blocks that one replica's cache would have."""
    asked = answer.asked
    ordered = sorted(asked.trace, key=lambda request: request.time)
    tokens = sum(r.prompt for r in ordered) / max(1, sum(len(r.blocks) for r in ordered))
    hits, everything = prefix_hits(ordered, int(answer.settings.kv_tokens / tokens))
    share = hits / everything
    shorter = [replace(r, prompt=max(1, round(r.prompt * (1 - share)))) for r in asked.trace]
    note = f"prompts {share:.0%} shorter, what a cache of one card's memory would hit"
    return _variant("prefix cache", note, replace(asked, trace=shorter), asked)


def _variant(name: str, note: str, other: Asked, asked: Asked) -> Variant:
    try:
        replicas = plan(other).plan.replicas
    except CapacityError as error:
        return Variant(name, note, why=str(error))
    return Variant(name, note, replicas, bill(asked.trace, replicas, asked.price))
