"""The trials and the pictures of lab 11's notebook; each picture takes data, returns nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.patches import Patch

from grader.course.paths import MODELS
from grader.student.notebook import movable, style
from nanovllm.cluster.trial import Ask, Outcome
from nanovllm.model.config import ModelConfig

if TYPE_CHECKING:
    from nanovllm.cluster.fleet_trial import Control, Moment
    from nanovllm.cluster.replay import Job, Progress, Span
    from nanovllm.cluster.routing_interface import BlockIndexInterface, Policy

style()
TARGET = ModelConfig("qwen3", 2048, 256, 4, 8, 4, 32, 768, 1024, qk_norm=True)  # as the bundled one
KINDS = {"prefill": "C1", "decode": "C0", "mixed": "C3", "transfer": "0.5"}
LINKS = {"10 Gbit": 1.25e9, "100 Gbit": 12.5e9, "NVLink 4": 450e9}  # bytes a second
LOAD = (*[1] * 30, *[4] * 80, *[1] * 70)  # requests that arrive in each second


def jobs() -> list[Job]:
    """Ten requests, of which three have long prompts."""
    from nanovllm.cluster.replay import Job

    prompts = (60, 60, 900, 60, 60, 700, 60, 900, 60, 60)
    return [Job(0.05 * number, prompt, 40) for number, prompt in enumerate(prompts)]


def asks(count: int = 96) -> list[Ask]:
    """Two requests a step; each begins with one of twelve texts, some of which are popular."""
    draws = random.Random(11)
    texts = [tuple(draws.randrange(3, 2000) for _ in range(96)) for _ in range(12)]
    weights = [1 / (rank + 1) ** 1.2 for rank in range(12)]

    def prompt() -> tuple[int, ...]:
        (text,) = draws.choices(texts, weights)
        return text + tuple(draws.randrange(3, 2000) for _ in range(draws.randrange(8, 24)))

    return [Ask(number // 2, prompt()) for number in range(count)]


def trial(policy: Policy, index: BlockIndexInterface, replicas: int = 3) -> Outcome:
    """Your policy and your index in front of engines with the bundled draft model."""
    from nanovllm.batching.config import EngineConfig
    from nanovllm.batching.engine import Engine
    from nanovllm.cluster.trial import run_trial
    from nanovllm.generation.params import SamplingParams
    from nanovllm.model.loader import load_model
    from nanovllm.paging.store import PagedStore
    from nanovllm.tokenization.tokenizer import Tokenizer

    torch.set_num_threads(1)
    folder = MODELS / "draft"
    model, tokenizer = load_model(folder), Tokenizer.from_pretrained(folder)
    config = EngineConfig(max_num_seqs=8, max_num_batched_tokens=64)
    engines = {
        f"r{number}": Engine(
            model, config, tokenizer=tokenizer, store=PagedStore(model.config, 100)
        )
        for number in range(replicas)
    }
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    return run_trial(engines, policy, index, asks(), params)


def placements(know_models: bool, count: int = 90) -> list[tuple[str, str, bool]]:
    """Where your ranks send requests for four models: replica, model, whether it was loaded first.

    Three replicas keep two models each; a request is open until eight others have come. Without
    know_models, the router is told that every replica has every model.
    """
    from nanovllm.cluster.block_index import BlockIndex
    from nanovllm.cluster.ray_parts import Candidate, Memory, rank_replicas
    from nanovllm.cluster.routing import make_policy
    from nanovllm.cluster.routing_interface import Query, ReplicaLoad

    draws, memory, done = random.Random(5), Memory(2), []
    policy = make_policy("least_loaded", BlockIndex())
    for _ in range(count):
        model = draws.choices("abcd", (6, 3, 2, 1))[0]
        busy = [replica for replica, _, _ in done[-8:]]
        candidates = [
            Candidate(ReplicaLoad(name, busy.count(name)), 6, memory.models(name))
            for name in ("r0", "r1", "r2")
        ]
        ranks = rank_replicas(policy, Query(), candidates, model if know_models else "")
        name = ranks[0][0]
        done.append((name, model, model not in memory.models(name)))
        memory.sent(name, model)
    return done


def packed(tokens: int, block_size: int = 16) -> int:
    """Bytes of what your `pack` makes of so many tokens of the bundled model."""
    from nanovllm.cluster.header import Header
    from nanovllm.cluster.wire import pack
    from nanovllm.paging.cache import PagedCache

    blocks = -(-tokens // block_size)
    cache = PagedCache(TARGET, blocks, block_size)
    return len(pack(Header.of(cache, "target"), cache, range(blocks), tokens))


def wire(predicted: Callable[[int, int], float], counted: Mapping[tuple[int, int], int]) -> None:
    """Left: bytes of a prompt, your formula and your `pack`. Right: what sending costs in practice.

    The right side is Llama 3.1 8B in bfloat16 on an H100 that reaches 400 TFLOP/s.
    """
    _, (left, right) = plt.subplots(1, 2, figsize=(12, 3.4), layout="constrained")
    for number, size in enumerate(sorted({size for _, size in counted})):
        tokens = list(range(1, max(tokens for tokens, _ in counted) + 1))
        left.step(
            tokens, [predicted(count, size) / 1024 for count in tokens], where="mid",
            color=f"C{number}", label=f"blocks of {size}",
        )  # fmt: skip
        dots = [(count, nbytes / 1024) for (count, of), nbytes in counted.items() if of == size]
        left.plot(*zip(*dots, strict=True), "o", color=f"C{number}")
    left.set(xlabel="tokens of the prompt", ylabel="KiB", title="line: formula; dots: counted")
    left.legend(frameon=False)
    tokens = np.logspace(2, 5, 50)
    right.plot(tokens, 1e3 * tokens * 16e9 / 400e12, color="black", lw=2, label="to compute it")
    for name, speed in LINKS.items():
        right.plot(tokens, 1e3 * tokens * 131072 / speed, label=f"to send it: {name}")
    right.set(xscale="log", yscale="log", xlabel="tokens of the prompt", ylabel="ms")
    right.set_title("Llama 3.1 8B: a prompt's K and V")
    right.legend(frameon=False, fontsize=8)
    plt.show()


def gantt(found: Mapping[str, tuple[Sequence[Progress], Sequence[Span]]]) -> None:
    """A row of lanes for each strategy: what each instance does when, and what users get."""
    lanes = {name: list(dict.fromkeys(s.lane for s in spans)) for name, (_, spans) in found.items()}
    order = ["prefill", "wire", "decode", "0", "1"]
    figure, axes = plt.subplots(
        len(found), 1, figsize=(12, 1.55 * len(found)), sharex=True, layout="constrained",
        height_ratios=[1 + len(each) for each in lanes.values()],
    )  # fmt: skip
    for axis, (name, (done, spans)) in zip(np.atleast_1d(axes), found.items(), strict=True):
        names = sorted(lanes[name], key=order.index)
        for span in spans:
            place, length = names.index(span.lane), span.end - span.start
            axis.barh(place, length, left=span.start, color=KINDS[span.kind], ec="white", lw=0.2)
        for each in done:
            axis.plot(each.job.arrival, -0.75, "v", ms=3, color="black")
        first = sorted(each.times[0] - each.job.arrival for each in done)
        gaps = [b - a for each in done for a, b in pairwise(each.times)]
        axis.set_title(
            f"{name}: first token after {1e3 * np.median(first):.0f} ms (median), "
            f"{1e3 * first[-1]:.0f} ms (worst); longest gap between two tokens "
            f"{1e3 * max(gaps):.0f} ms", fontsize=9, loc="left",
        )  # fmt: skip
        labels = [f"instance {lane}" if lane in "01" else lane for lane in names]
        axis.set(yticks=range(len(names)), yticklabels=labels, ylim=(len(names) - 0.5, -1.1))
        axis.grid(axis="y", visible=False)
    np.atleast_1d(axes)[-1].set_xlabel("seconds; triangles: a request arrives")
    patches = [Patch(color=color, label=kind) for kind, color in KINDS.items()]
    figure.legend(handles=patches, loc="outside lower right", ncols=4, frameon=False)
    plt.show()


def policies(found: Mapping[str, Outcome]) -> None:
    """Hits against balance; a larger dot waits longer. Best is at the upper left."""
    replicas = max(len(outcome.requests) for outcome in found.values())
    _, axis = plt.subplots(figsize=(8, 4.2), layout="constrained")
    label = -1.0
    for name, outcome in sorted(found.items(), key=lambda pair: pair[1].hit_share):
        mean = sum(outcome.waited.values()) / len(outcome.waited)
        x, y = 100 * outcome.busiest, 100 * outcome.hit_share
        label = max(y, label + 1.0)  # so that no name covers another
        color = "C1" if name.startswith("yours") else "C0"
        axis.scatter(x, y, s=30 + 25 * mean, color=color, alpha=0.75)
        axis.plot((x, x + 2), (y, label), color="0.6", lw=0.7)
        axis.text(x + 2.2, label, f"{name.replace('_', ' ')}: {mean:.1f}", fontsize=8, va="center")
    axis.axvline(100 / replicas, color="0.5", ls=":", lw=1)
    axis.text(100 / replicas, axis.get_ylim()[1], " even", fontsize=8, va="top", color="0.4")
    axis.set(xlabel="% of the requests on the busiest replica", xlim=(28, 100))
    axis.set(
        ylabel="% of prompt tokens in a prefix cache",
        title="size and number: steps to the first token",
    )
    plt.show()


def fleet(moments: Sequence[Moment], change_at: int | None = None) -> None:
    """Replicas over time by version and state, above the requests that are open or wait."""
    from nanovllm.cluster.fleet import State

    figure, (above, below) = plt.subplots(
        2, 1, figsize=(12, 4.4), sharex=True, layout="constrained", height_ratios=[2, 1]
    )
    times, base = [moment.now for moment in moments], np.zeros(len(moments))
    layers = [
        ("v1", State.READY, "C0", 1.0), ("v1", State.STARTING, "C0", 0.35),
        ("v2", State.READY, "C2", 1.0), ("v2", State.STARTING, "C2", 0.35),
        ("v1", State.DRAINING, "0.6", 1.0), ("v2", State.DRAINING, "0.8", 1.0),
    ]  # fmt: skip
    for version, state, color, alpha in layers:
        counts = np.array([moment.count(state, version=version) for moment in moments])
        if counts.any():
            above.fill_between(
                times, base, base + counts, step="post", color=color, alpha=alpha, lw=0,
                label=f"{version} {state.value}",
            )  # fmt: skip
        base = base + counts
    above.set(ylabel="replicas")
    if change_at is not None:
        above.axvline(change_at, color="black", lw=1, ls=":")
        above.text(change_at, above.get_ylim()[1], " new version", fontsize=8, va="top")
    figure.legend(loc="outside right upper", frameon=False)
    below.step(times, [moment.open for moment in moments], where="post", label="open")
    below.step(times, [moment.waiting for moment in moments], where="post", label="waiting")
    below.set(xlabel="seconds", ylabel="requests")
    below.legend(frameon=False)
    plt.show()


def scaler(control_of: Callable[[Any], Control]) -> None:
    """Move the delays and the target: replicas against what the load would need at once."""
    from nanovllm.cluster.autoscaler import Autoscaler
    from nanovllm.cluster.fleet import State
    from nanovllm.cluster.fleet_trial import run_fleet

    def draw(axis: Any, down_delay: int, up_delay: int, target: int) -> None:
        mine = Autoscaler(target, 1, 12, up_delay, down_delay)
        moments = run_fleet([*LOAD[:60], *LOAD[110:], *LOAD[:60], *LOAD[110:]], control_of(mine))
        times = [moment.now for moment in moments]
        living = [moment.count(State.STARTING, State.READY) for moment in moments]
        axis.step(times, living, where="post", label="replicas")
        needed = [-(-(moment.open + moment.waiting) // target) for moment in moments]
        axis.step(times, needed, where="post", lw=0.7, color="C1", label="needed")
        waiting = sum(moment.waiting for moment in moments)
        axis.set_xlabel(f"s; {sum(living)} replica-seconds,\n{waiting} request-seconds waited")
        axis.set_ylim(0, 14)
        axis.legend(frameon=False, fontsize=7, loc="upper center", ncols=2)

    movable(draw, down_delay=[0, 5, 20, 60], up_delay=[0, 3, 10], target=[2, 4, 8])


def residency(found: Mapping[str, Sequence[Sequence[str]]], asked: str) -> None:
    """For each pool, which models are in memory after each request; a dot where one was loaded."""
    models = sorted(set(asked))
    _, axes = plt.subplots(
        len(found), 1, figsize=(12, 1.25 * len(found)), sharex=True, layout="constrained"
    )
    for axis, (name, rows) in zip(np.atleast_1d(axes), found.items(), strict=True):
        loads, before = 0, set()
        for place, row in enumerate(rows):
            for model in row:
                axis.barh(models.index(model), 1, left=place, color=f"C{models.index(model)}")
            if asked[place] not in before:
                axis.plot(place + 0.5, models.index(asked[place]), "o", ms=5, color="white")
                loads += 1
            before = set(row)
        axis.set_title(f"{name}: {loads} loads for {len(rows)} requests", fontsize=9, loc="left")
        axis.set(yticks=range(len(models)), yticklabels=models, ylim=(len(models) - 0.5, -0.5))
        axis.grid(axis="y", visible=False)
    order = " ".join(asked)
    np.atleast_1d(axes)[-1].set_xlabel(f"requests, for {order}; white dot: loaded for this one")
    plt.show()


def placed(found: Mapping[str, Sequence[tuple[str, str, bool]]]) -> None:
    """Requests by replica and model; in brackets, how often the model was loaded for one."""
    figure, axes = plt.subplots(1, len(found), figsize=(9, 2.6), layout="constrained")
    for axis, (name, rows) in zip(np.atleast_1d(axes), found.items(), strict=True):
        replicas, models = (sorted({row[place] for row in rows}) for place in (0, 1))
        counts = np.zeros((len(replicas), len(models)))
        loads = np.zeros((len(replicas), len(models)), int)
        for replica, model, loaded in rows:
            counts[replicas.index(replica), models.index(model)] += 1
            loads[replicas.index(replica), models.index(model)] += loaded
        axis.imshow(counts, cmap="Blues", vmin=0, vmax=1.6 * counts.max(), aspect="auto")
        for (row, column), count in np.ndenumerate(counts):
            text = f"{count:.0f} ({loads[row, column]})"
            axis.text(column, row, text, ha="center", va="center", fontsize=9)
        busiest = counts.sum(axis=1).max() / counts.sum()
        axis.set_title(f"{name}: {loads.sum()} loads, busiest {busiest:.0%}", fontsize=9)
        axis.set(xticks=range(len(models)), xticklabels=models, xlabel="model")
        axis.set(yticks=range(len(replicas)), yticklabels=replicas)
        axis.grid(visible=False)
    figure.suptitle("requests (of them: loaded first)", fontsize=9)
    plt.show()
