"""A fleet against one engine: what is sent, found, waited for, and never lost; all in counts."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.simulator import StepCost
from nanovllm.cluster.autoscaler import Autoscaler, to_drain
from nanovllm.cluster.block_index import BlockIndex
from nanovllm.cluster.fleet import Fleet, State
from nanovllm.cluster.fleet_trial import run_fleet
from nanovllm.cluster.in_process import connected_engine, hand_over, run_alone
from nanovllm.cluster.model_pool import ModelPool
from nanovllm.cluster.model_specs import ModelSpec
from nanovllm.cluster.ray_parts import Candidate, rank_replicas
from nanovllm.cluster.replay import Job, Limits, Progress, replay
from nanovllm.cluster.rollout import Actions
from nanovllm.cluster.routing import make_policy
from nanovllm.cluster.routing_interface import POLICIES, Query, ReplicaLoad
from nanovllm.cluster.strategies import Wire, chunked, disaggregated, prefill_first, static
from nanovllm.cluster.trial import Ask, run_trial
from nanovllm.generation.params import SamplingParams
from nanovllm.model.loader import load_model
from nanovllm.paging.store import PagedStore
from nanovllm.tokenization.tokenizer import Tokenizer

MODELS = Path(__file__).resolve().parents[2] / "models"
STORY = "Mia has a code. Mia's code is {}. She lives in a red house with her dog. "
PRINT = {"highlight": False}
LIVING = State.STARTING, State.READY


def transfer(console: Console) -> None:
    """Two engines say what one says; the second computes hardly any prompt."""
    alone = connected_engine(MODELS / "target", 200, 16)
    prefill = connected_engine(MODELS / "target", 200, 16)
    decode = connected_engine(MODELS / "target", 400, 8)  # smaller blocks: K and V are cut anew
    same, computed, saved, sent, prompts = 0, 0, 0, 0, 0
    for number in range(6):
        prompt = alone.tokenizer.encode(STORY.format(4821 + number) * 4 + "What is Mia's code?")
        params = SamplingParams(temperature=number % 2, seed=number, max_tokens=16)
        one, two = run_alone(alone, prompt, params), hand_over(prefill, decode, prompt, params)
        same += one.text == two.text
        computed, saved, sent = computed + two.computed, saved + one.computed, sent + two.nbytes
        prompts += len(prompt)
    free = all(
        engine.store.free_tokens == engine.store.total_tokens for engine in (prefill, decode)
    )
    console.print(
        f"[bold]Prefill here, decode there[/] (blocks of 16 and of 8): {same} of 6 texts are those "
        f"of one engine.\nPrompts of {prompts} tokens; for prompts and answers one engine computes "
        f"{saved} tokens, the decode engine {computed}.\n{sent / 1e6:.2f} MB were sent, and all "
        f"blocks are free afterwards: {'yes' if free else 'no'}.\n", **PRINT
    )  # fmt: skip


def asks(count: int = 96) -> list[Ask]:
    """Two requests a step; each begins with one of twelve texts, some of which are popular."""
    draws = random.Random(11)
    texts = [tuple(draws.randrange(3, 2000) for _ in range(96)) for _ in range(12)]
    weights = [1 / (rank + 1) ** 1.2 for rank in range(12)]

    def prompt() -> tuple[int, ...]:
        (text,) = draws.choices(texts, weights)
        return text + tuple(draws.randrange(3, 2000) for _ in range(draws.randrange(8, 24)))

    return [Ask(number // 2, prompt()) for number in range(count)]


def routing(console: Console) -> None:
    """What each policy finds in the prefix caches, and how even it is."""
    model, tokenizer = load_model(MODELS / "draft"), Tokenizer.from_pretrained(MODELS / "draft")
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    table = Table(
        title="96 requests, two a step; 12 texts that they begin with",
        caption="found: prompt tokens in a prefix cache; waits: steps to the first token",
    )
    for column in ("policy", "replicas", "found", "busiest", "waits p50", "p90", "steps"):
        table.add_column(column, justify="left" if column == "policy" else "right", no_wrap=True)
    texts: list[dict[int, str]] = []
    for replicas, policy in [(1, "round_robin"), *((3, policy) for policy in POLICIES)]:
        index = BlockIndex()
        engines = {
            f"r{number}": Engine(
                model,
                EngineConfig(max_num_seqs=8, max_num_batched_tokens=64),
                tokenizer=tokenizer,
                store=PagedStore(model.config, 300 // replicas),
            )
            for number in range(replicas)
        }
        seen = run_trial(engines, make_policy(policy, index), index, asks(), params)
        waits = sorted(seen.waited.values())
        texts.append(seen.texts)
        table.add_row(
            policy if replicas > 1 else "one engine", f"{replicas}", f"{seen.hit_share:.0%}",
            f"{seen.busiest:.0%}", f"{waits[len(waits) // 2]}", f"{waits[len(waits) * 9 // 10]}",
            f"{seen.steps}",
        )  # fmt: skip
    console.print(table)
    same = sum(each == texts[0] for each in texts)
    console.print(f"{same} of {len(texts)} rows gave the same texts.\n", **PRINT)


def strategies(console: Console) -> None:
    """Four ways to serve one trace with two instances, in the simulator."""
    draws = random.Random(4)
    jobs = [Job(0.08 * n, draws.choice((60, 120, 900)), draws.randrange(20, 60)) for n in range(24)]
    cost, limits = StepCost(), Limits()
    table = Table(title="24 requests on two instances, simulated", caption="seconds")
    for column in ("strategy", "first token p50", "p95", "longest gap", "all done"):
        table.add_column(column, justify="left" if column == "strategy" else "right", no_wrap=True)
    for name, strategy in {"static": static, "prefill first": prefill_first,
                           "chunked": chunked, "disaggregated": None}.items():  # fmt: skip
        if strategy is None:
            done, _ = disaggregated(jobs, cost, Wire(), limits)
        else:
            done = [Progress(number, job, job.arrival) for number, job in enumerate(jobs)]
            replay(done, strategy, cost, limits, lanes=("0", "1"), one_pool=True)
        first = sorted(each.times[0] - each.job.arrival for each in done)
        gaps = [b - a for each in done for a, b in pairwise(each.times)]
        table.add_row(
            name, f"{first[12]:.2f}", f"{first[22]:.2f}", f"{max(gaps):.3f}",
            f"{max(each.times[-1] for each in done):.2f}",
        )  # fmt: skip
    console.print(table)


def fleet(console: Console) -> None:
    """A load that comes and goes, and a change of version in its middle."""
    scaler = Autoscaler(target=4, least=2, most=8, up_delay=3, down_delay=10)

    def control(now: float, fleet: Fleet, open_requests: int) -> Actions:
        alive = fleet.living()
        more = scaler.decide(now, open_requests, len(alive)) - len(alive)
        return Actions(more) if more > 0 else Actions(0, tuple(to_drain(alive, -more)))

    load = [1] * 30 + [4] * 80 + [1] * 70
    seen = run_fleet(load, control, change_at=70)
    change = [moment for moment in seen if moment.now >= 70 and moment.count(*LIVING, version="v1")]
    living = [moment.count(*LIVING) for moment in seen]
    ended = sum(load) - seen[-1].open - seen[-1].waiting
    console.print(
        f"\n[bold]A fleet over {len(seen)} s[/]: {living[0]} replicas, then {max(living)}, then "
        f"{living[-1]}; the longest queue was {max(moment.waiting for moment in seen)}.\n"
        f"The change of version took {len(change)} s, with never fewer than "
        f"{min(moment.count(State.READY) for moment in change)} ready replicas; "
        f"{ended} of {sum(load)} requests had ended, the others were open.\n",
        **PRINT,
    )


def models(console: Console) -> None:
    """Three models of which two fit, asked for in turn: with a pin, and without."""
    for pinned in (False, True):
        loads: list[str] = []
        specs = [ModelSpec("a", 5, pinned), ModelSpec("b", 5), ModelSpec("c", 5)]
        pool = ModelPool(10, specs, lambda spec: loads.append(spec.name), lambda spec, loaded: None)  # noqa: B023
        for name in "abc" * 8:
            with pool.using(name):
                pass
        told = "with a pinned" if pinned else "no pin"
        console.print(
            f"Three models, room for two, 24 requests in turn, {told}: {len(loads)} loads."
        )
    chosen = make_policy("least_loaded", BlockIndex())
    some = [
        Candidate(ReplicaLoad(name, requests), 8, frozenset(held))
        for name, requests, held in (("r0", 8, "a"), ("r1", 5, "a"), ("r2", 0, "b"))
    ]
    ranks = rank_replicas(chosen, Query(), some, "a")
    console.print(f"For model a, Ray Serve is to ask {' then '.join(map(str, ranks))}.", **PRINT)


def main() -> None:
    """From one prompt's K and V to a fleet."""
    torch.set_num_threads(1)
    console = Console()
    transfer(console)
    routing(console)
    strategies(console)
    fleet(console)
    models(console)


if __name__ == "__main__":
    main()
