"""Where the memory for K and V goes: slots of the greatest length against blocks, same trace.

Lab 04's scheduler runs a made-up trace over lab 04's SlotStore and lab 05's BlockManager. No
model computes: every step is booked as it would be, and sampled.
"""

import math
import random
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from nanovllm.batching.budget import FixedBudget
from nanovllm.batching.events import Stepped
from nanovllm.batching.plan import Plan
from nanovllm.batching.scheduler import Scheduler
from nanovllm.batching.simulator import Run, StepCost, simulate
from nanovllm.batching.slot_store import SlotStore
from nanovllm.batching.traces import Arrival
from nanovllm.bench.record import save_figure
from nanovllm.generation.latency import ManualClock
from nanovllm.model.config import ModelConfig
from nanovllm.paging.manager import BlockManager

MEAN_PROMPT, MEAN_OUTPUT = 161, 338  # tokens of ShareGPT, in the vLLM paper (arXiv 2309.06180)


@dataclass(frozen=True)
class Sample:
    """One step: places in the store, by what they are for."""

    stored: int  # hold a token
    held: int  # belong to a request, whether they hold a token or not
    total: int
    requests: int


@dataclass(frozen=True)
class Usage:
    """A run's steps in which requests waited for room, and not for their turn to be computed."""

    sequences: float  # held at once, mean
    internal_waste: float  # share of the places held that hold nothing
    external_waste: float  # share of all places that nobody holds
    stored: float  # share of all places that hold a token
    steps: int  # of the whole run


def waits_for_room(step: Stepped, budget: int) -> bool:
    """Whether a step left requests waiting although it could have computed more."""
    return step.waiting > 0 and sum(chunk.length for chunk in step.chunks) < budget


def sharegpt_like(seed: int, count: int, longest: int) -> list[Arrival]:
    """Requests all there at the start; lognormal sizes with ShareGPT's means, cut off."""
    draw = random.Random(seed)

    def size(average: float, most: int) -> int:
        spread = 1.0
        return min(most, max(4, int(draw.lognormvariate(math.log(average) - spread / 2, spread))))

    half = longest // 2
    return [Arrival(0.0, size(MEAN_PROMPT, half), size(MEAN_OUTPUT, half)) for _ in range(count)]


def watch(store: SlotStore | BlockManager, scheduler: Scheduler) -> list[Sample]:
    """A list that gets a sample whenever the store has booked a step."""
    samples: list[Sample] = []
    commit = store.commit

    def sampled(plan: Plan) -> None:
        commit(plan)
        requests = list(scheduler.running)
        held = {block_id for request in requests for block_id in store.block_ids(request)}
        stored = store.total_tokens - store.free_tokens
        places = len(held) * store.block_size
        samples.append(Sample(stored, places, store.total_tokens, len(requests)))

    store.commit = sampled
    return samples


def usage(
    trace: list[Arrival], store: SlotStore | BlockManager, budget: int = 2048
) -> tuple[Usage, list[Sample]]:
    """Run a trace over a store, and sample it at every step; seats for all: only room is short.

    Raises ValueError if nobody ever waited for room.
    """
    scheduler = Scheduler(
        store, budget=FixedBudget(budget), max_num_seqs=len(trace), clock=ManualClock()
    )
    samples = watch(store, scheduler)
    run: Run = simulate(trace, scheduler, StepCost())
    steps = [event for event in run.events if isinstance(event, Stepped)]
    pairs = zip(samples, steps, strict=True)
    full = [sample for sample, step in pairs if waits_for_room(step, budget) and sample.held]
    if not full:
        raise ValueError("Nobody waited for room: ask for more requests, or for less memory.")
    return (
        Usage(
            sequences=mean(s.requests for s in full),
            internal_waste=mean(1 - s.stored / s.held for s in full),
            external_waste=mean(1 - s.held / s.total for s in full),
            stored=mean(s.stored / s.total for s in full),
            steps=len(steps),
        ),
        samples,
    )


def compare(
    config: ModelConfig,
    *,
    kv_tokens: int = 32768,
    max_model_len: int = 2048,
    block_size: int = 16,
    count: int = 250,
    seed: int = 0,
) -> tuple[dict[str, Usage], dict[str, list[Sample]]]:
    """The same trace and memory, in slots of max_model_len and in blocks."""
    trace = sharegpt_like(seed, count, max_model_len)
    small = replace(config, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=2, windows=())
    stores = {
        "contiguous": SlotStore(small, kv_tokens // max_model_len, max_model_len),
        # simulated requests all have the same token ids: nothing that they share is real
        "paged": BlockManager(kv_tokens // block_size, block_size, enable_prefix_caching=False),
    }
    found, samples = {}, {}
    for name, store in stores.items():
        found[name], samples[name] = usage(trace, store)
    return found, samples


def as_json(found: dict[str, Usage]) -> dict[str, Any]:
    """The usages as plain data."""
    return {name: asdict(each) for name, each in found.items()}


def plot(found: dict[str, Usage], samples: dict[str, list[Sample]], path: Path) -> Path:
    """What the places are for while requests wait; and how many requests are held, by step."""
    colours = {"contiguous": "#64748b", "paged": "#d97706"}
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(
        1, 2, figsize=(12, 3.6), width_ratios=(1, 1.6), layout="constrained"
    )
    names = list(found)[::-1]
    start = [0.0] * len(names)
    parts = {
        "hold a token": ("#16a34a", [found[n].stored for n in names]),
        "held, empty": ("#f59e0b", [1 - found[n].external_waste - found[n].stored
                                    for n in names]),
        "nobody's": ("#e2e8f0", [found[n].external_waste for n in names]),
    }  # fmt: skip
    for label, (colour, values) in parts.items():
        left.barh(names, values, left=start, color=colour, label=label, height=0.5)
        for place, value in enumerate(values):
            if value > 0.05:
                middle = start[place] + value / 2
                left.annotate(f"{value:.0%}", (middle, place), ha="center", va="center")
        start = [a + b for a, b in zip(start, values, strict=True)]
    left.set_xlim(0, 1)
    left.set_xlabel("share of the memory, while requests wait")
    left.legend(loc="upper center", bbox_to_anchor=(0.5, 1.16), ncols=3, frameon=False)
    for name, steps in samples.items():
        right.plot([s.requests for s in steps], color=colours[name], label=name)
    right.set_xlabel("step")
    right.set_ylabel("requests held at once")
    right.legend(frameon=False)
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    return save_figure(figure, path)
