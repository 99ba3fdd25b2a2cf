"""One process, and ranks in several: `python -m benchmarks.parallel --out FOLDER`.

What a rank holds and sends is counted, with ranks as threads. What a step takes is measured with
ranks as processes over gloo, beside one process; all use as many threads together, but for the one
that has a single thread. A step is what a run of STEPS tokens more takes longer, by the least of
the rounds of each: others disturb, nobody helps.
"""

import argparse
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from nanovllm.bench import tables
from nanovllm.bench.contestants import OURS, PLAIN, Ready, Settings, started
from nanovllm.bench.machine import usable_cpus
from nanovllm.bench.models import CONTEXT, model_folder
from nanovllm.bench.record import record, save
from nanovllm.bench.workload import random_workload
from nanovllm.model.accounting import kv_bytes_per_token
from nanovllm.model.attend import RecomputeAttend
from nanovllm.model.loader import load_config
from nanovllm.parallel.checkpoint import Checkpoint
from nanovllm.parallel.communicator import Communicator
from nanovllm.parallel.costs import Layout, ParallelCost
from nanovllm.parallel.hardware import CARDS, LINKS, Cluster
from nanovllm.parallel.loading import load_shard
from nanovllm.parallel.threads import run_ranks

Results = dict[str, Any]
PROMPT, STEPS = 16, 8  # tokens


@dataclass(frozen=True)
class Way:
    """Who computes: a contestant, its threads, and how many ranks and stages they are."""

    name: str
    contestant: str = PLAIN
    threads: int = 1
    slices: int = 1
    stages: int = 1


def ways(threads: int) -> list[Way]:
    """The plain step everywhere, as ranks have no other."""
    return [
        Way("one process, one thread"),
        Way(f"one process, {threads} threads", threads=threads),
        Way("TP 2, processes", OURS, threads, slices=2),
        Way("PP 2, processes", OURS, threads, stages=2),
    ]


def counted(folder: Path, slices: int, batches: list[int]) -> Results:
    """What one of so many slices holds, and what it sends in a step of each batch."""

    @torch.inference_mode()
    def work(comm: Communicator) -> Results:
        model = load_shard(Checkpoint(folder), comm)
        steps = {}
        for batch in batches:
            comm.counts.clear()
            ids = torch.arange(batch)
            model.logits(model(ids, ids, RecomputeAttend(model.config)))
            calls = {kind: count.calls for kind, count in comm.counts.by_kind.items()}
            steps[batch] = {"calls": calls, "bytes": comm.counts.bytes}
        return {
            "weight_bytes": sum(weight.nbytes for weight in model.parameters()),
            "kv_bytes_per_token": kv_bytes_per_token(model.config, 4),
            "steps": steps,
        }

    return max(run_ranks(slices, work), key=lambda rank: rank["weight_bytes"])


def seconds_of(one: Ready, tokens: int, batch: int, vocab_size: int, number: int) -> float:
    """Seconds of a run in which each request of a batch gets so many tokens."""
    asked = random_workload(vocab_size, batch, (PROMPT, PROMPT), (tokens, tokens), number)
    return one.run(asked)["seconds"]


def measured(given: argparse.Namespace, folder: Path, vocab_size: int) -> Results:
    """Of each way and batch the runs of 1 token and of STEPS more; all are up, and take turns."""
    ready: dict[str, Ready] = {}
    found: Results = {way.name: {} for way in ways(given.threads)}
    with ExitStack() as stack:
        for way in ways(given.threads):
            settings = Settings(
                str(folder), "float32", way.threads, max(given.batches), CONTEXT,
                tensor_parallel_size=way.slices, pipeline_parallel_size=way.stages,
            )  # fmt: skip
            alone = stack.enter_context(started([way.contestant], settings))
            ready[way.name] = alone[way.contestant]
        for number in range(given.rounds):
            for name, one in ready.items():
                for batch in given.batches:
                    runs = found[name].setdefault(batch, {"first": [], "last": []})
                    for end, tokens in (("first", 1), ("last", STEPS + 1)):
                        runs[end].append(seconds_of(one, tokens, batch, vocab_size, number))
                print(f"  round {number + 1}: {name}", file=sys.stderr, flush=True)
    for batches in found.values():
        for runs in batches.values():
            runs["step_seconds"] = (min(runs["last"]) - min(runs["first"])) / STEPS
    return found


def predicted(folder: Path, batches: list[int]) -> Results:
    """What lab 10's cost model says of one core and of two that send over gloo."""
    config = load_config(folder)
    cluster = Cluster(CARDS["core"], LINKS["gloo"], LINKS["gloo"])
    return {
        f"TP {tp}": {
            batch: ParallelCost(config, cluster, Layout(tp), 4).seconds(batch, batch * 20, batch)
            for batch in batches
        }
        for tp in (1, 2)
    }


def show(found: Results, batches: list[int]) -> None:
    """Counts, then times."""
    console, kinds = Console(), ("all_reduce", "gather_last")
    table = tables.plain(
        "A rank, float32", "ranks", "weights, MB", "K and V a token, KiB",
        *(f"sent at batch {batch}, KiB" for batch in batches), "all-reduces, gathers",
    )  # fmt: skip
    for ranks, held in found["counted"].items():
        steps = held["steps"]
        table.add_row(
            str(ranks),
            f"{held['weight_bytes'] / 1e6:.0f}",
            f"{held['kv_bytes_per_token'] / 1024:g}",
            *(f"{steps[batch]['bytes'] / 1024:.0f}" for batch in batches),
            ", ".join(str(steps[batches[0]]["calls"].get(kind, 0)) for kind in kinds),
        )
    console.print(table)
    table = tables.plain("A step, ms: the least", "way", *(f"batch {batch}" for batch in batches))
    for name, runs in found["runs"].items():
        table.add_row(name, *(f"{1e3 * runs[batch]['step_seconds']:.0f}" for batch in batches))
    for name, seconds in found["predicted"].items():
        table.add_row(f"cost model, {name}", *(f"{1e3 * seconds[batch]:.0f}" for batch in batches))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--model", default="mid")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--threads", type=int, default=usable_cpus())
    given = parser.parse_args()
    folder = model_folder(given.model)
    found = {
        "counted": {ranks: counted(folder, ranks, given.batches) for ranks in (1, 2, 4)},
        "runs": measured(given, folder, load_config(folder).vocab_size),
        "predicted": predicted(folder, given.batches),
    }
    show(found, given.batches)
    settings = {"model": given.model, "rounds": given.rounds, "threads": given.threads}
    save(record("parallel", settings, found), given.out / "parallel.json")


if __name__ == "__main__":
    main()
