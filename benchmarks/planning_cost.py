"""What a step costs besides the model: `python -m benchmarks.planning_cost --out FOLDER`.

Scheduling and bookkeeping must not grow with the requests that have come and gone, nor with the
size of the pool, and at most linearly with the requests that run. The curves are processor time,
so that a busy machine does not matter much; the shares of a step are of its time on the wall, as
the model has several threads.
"""

import argparse
import gc
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from nanovllm.batching.budget import FixedBudget
from nanovllm.batching.engine import Engine
from nanovllm.batching.request import Request, Status
from nanovllm.batching.scheduler import Scheduler
from nanovllm.batching.simulated import SimulatedSequence
from nanovllm.bench.record import record, save, save_figure
from nanovllm.bench.stages import greedy, settle
from nanovllm.bench.workload import random_workload
from nanovllm.generation.latency import ManualClock
from nanovllm.llm.paged_engines import EngineOptions, make_engine, why_not_fast
from nanovllm.llm.read_options import BUNDLED
from nanovllm.model.loader import load_model
from nanovllm.paging.manager import BlockManager

Report = Callable[[str], None]
Curve = dict[int, float]  # microseconds a step
ROUND = 16  # steps, in which every request fills one block


class Drive:
    """Lab 04's scheduler over lab 05's books, with requests that are only their lengths."""

    def __init__(self, num_blocks: int, max_num_seqs: int) -> None:
        # all simulated requests have the same token ids: a salt each, or all would be hits
        store = BlockManager(num_blocks, salt_of=lambda request: str(request.number))
        budget = FixedBudget(max(8192, max_num_seqs))
        self.store, self.clock, self.numbers = store, ManualClock(), count()
        self.scheduler = Scheduler(
            store, budget=budget, max_num_seqs=max_num_seqs, clock=self.clock
        )
        self.finished = 0

    def add(self, prompt: int, output: int) -> None:
        number = next(self.numbers)
        sequence = SimulatedSequence(number, prompt, output)
        self.scheduler.add(Request(number, sequence, self.clock(), prompt + output - 1))

    def step(self) -> float:
        """Plan, book, and end who is done; the seconds of it."""
        start = process_time()
        plan = self.scheduler.schedule()
        self.store.commit(plan)
        self.scheduler.update(plan)
        for chunk in plan.chunks:
            if chunk.completes:
                chunk.request.sequence.append()
                if chunk.request.sequence.finished:
                    self.scheduler.end(chunk.request, Status.FINISHED)
                    self.finished += 1
        return process_time() - start


def _microseconds(drive: Drive, rounds: int) -> float:
    """A step of decodes alone, all prompts read: the best of rounds of ROUND steps."""
    while any(request.remaining > 1 for request in drive.scheduler.running) or (
        drive.scheduler.waiting and len(drive.scheduler.running) < drive.scheduler.max_num_seqs
    ):
        drive.step()
    return 1e6 / ROUND * min(sum(drive.step() for _ in range(ROUND)) for _ in range(rounds))


def by_running(numbers: list[int], rounds: int) -> Curve:
    """Requests that run, each with 64 tokens read."""
    found = {}
    for number in numbers:
        drive = Drive(num_blocks=number * 16, max_num_seqs=number)
        for _ in range(number):
            drive.add(prompt=64, output=190)
        found[number] = _microseconds(drive, rounds)
    return found


def by_blocks(numbers: list[int], rounds: int) -> Curve:
    """Blocks of the pool, most of them filled and left in the prefix cache; 64 run."""
    found = {}
    for number in numbers:
        drive = Drive(number, max_num_seqs=64)
        while len(drive.store.prefix.index.by_key) < 0.8 * number - 64 * 16:
            for _ in range(64):
                drive.add(prompt=1600, output=2)
            while drive.scheduler.has_work:
                drive.step()
        for _ in range(64):
            drive.add(prompt=64, output=190)
        found[number] = _microseconds(drive, rounds)
    return found


def by_finished(numbers: list[int], rounds: int) -> Curve:
    """Requests that have come and gone; 64 run."""
    found, drive = {}, Drive(num_blocks=2048, max_num_seqs=64)
    for number in numbers:
        while drive.finished < number:
            while len(drive.scheduler.running) + len(drive.scheduler.waiting) < 64:
                drive.add(prompt=32, output=4)
            drive.step()
        while drive.scheduler.has_work:
            drive.step()
        for _ in range(64):
            drive.add(prompt=64, output=190)
        found[number] = _microseconds(drive, rounds)
        while drive.scheduler.has_work:
            drive.step()
    return found


def by_waiting(numbers: list[int], rounds: int) -> Curve:
    """Requests in the queue, first come first served; 64 run."""
    found = {}
    for number in numbers:
        drive = Drive(num_blocks=64 * 16, max_num_seqs=64)
        for _ in range(64 + number):
            drive.add(prompt=64, output=190)
        found[number] = _microseconds(drive, rounds)
    return found


class Stopwatch:
    """Adds up the time inside calls of methods, each less what those inside it took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner: list[float] = []

    def watch(self, owner: object, method: str, label: str) -> None:
        """Count a method of this object under a label."""
        inner = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0.0)
            start = perf_counter()
            try:
                return inner(*args, **kwargs)
            finally:
                whole = perf_counter() - start
                own = whole - self._inner.pop()
                self.seconds[label] = self.seconds.get(label, 0.0) + own
                if self._inner:
                    self._inner[-1] += whole

        object.__setattr__(owner, method, timed)


def shares(running: int, steps: int, compiled: bool) -> dict[str, float] | None:
    """The share of an engine's step that each of its parts takes, on the bundled model.

    None where there is no compiled step.
    """
    model = load_model(BUNDLED)
    options = EngineOptions(max_num_seqs=running, enforce_eager=not compiled)
    if compiled and why_not_fast(model, EngineOptions()) is not None:
        return None
    engine: Engine = make_engine(model, None, 512, options)
    settle(engine)
    vocab = model.config.vocab_size
    workload = random_workload(vocab, running, (64, 64), (steps + 40, steps + 40))
    for job in workload.jobs:
        engine.add_request(list(job.prompt), greedy(job))
    while any(r.remaining > 1 for r in engine.scheduler.running) or engine.scheduler.waiting:
        engine.step()
    watch = Stopwatch()
    watch.watch(engine, "step", "collect, report")
    for name in ("schedule", "update", "observe"):
        watch.watch(engine.scheduler, name, "schedule and book")
    watch.watch(engine.store, "commit", "schedule and book")
    watch.watch(engine, "execute", "tensors of the step")
    if compiled:
        watch.watch(engine, "_native", "model")
    watch.watch(engine.store, "bind", "tensors of the step")
    watch.watch(engine, "draw", "sample")
    watch.watch(engine, "update", "append tokens")
    watch.watch(model, "forward", "model")
    watch.watch(model, "logits", "model")
    for _ in range(steps):
        engine.step()
    total = sum(watch.seconds.values())
    return {label: seconds / total for label, seconds in sorted(watch.seconds.items())}


PLANS = {
    "finished": (by_finished, [0, 1000, 4000, 16000]),
    "running": (by_running, [64, 256, 1024, 4096]),
    "blocks": (by_blocks, [4000, 20000, 100000]),
    "waiting": (by_waiting, [0, 1000, 10000]),
}


def measure(quick: bool, report: Report) -> dict[str, Any]:
    """All curves and the shares."""
    rounds, running = (1, 8) if quick else (6, 64)
    curves: dict[str, Curve] = {}
    for name, (curve, numbers) in PLANS.items():
        gc.collect()
        curves[name] = curve(numbers, rounds)
        report(f"{name}: " + ", ".join(f"{n:,}: {us:.0f} us" for n, us in curves[name].items()))
    found = {}
    for name in ("plain", "compiled"):
        parts = shares(running, ROUND * rounds, compiled=name == "compiled")
        if parts is not None:
            found[name] = parts
            texts = (f"{part} {share:.1%}" for part, share in parts.items())
            report(f"share of a {name} step: " + ", ".join(texts))
    return {"microseconds_a_step": curves, "share_of_a_step": found}


def plot(results: dict[str, Any], path: Path) -> Path:
    """A panel a curve, from 0 up, and the parts of a step."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    curves = results["microseconds_a_step"]
    figure, axes = plt.subplots(
        1, len(curves) + 1, figsize=(3.3 * len(curves) + 4, 3), layout="constrained",
        width_ratios=[1] * len(curves) + [1.3],
    )  # fmt: skip
    for axis, (name, curve) in zip(axes, curves.items(), strict=False):
        numbers = [int(number) for number in curve]
        axis.plot(numbers, list(curve.values()), "o-", color="#d97706")
        axis.set_xlabel(f"requests {name}" if name != "blocks" else "blocks in the pool")
        axis.set_ylim(0, 1.25 * max(curve.values()))
        axis.ticklabel_format(style="plain")
        axis.tick_params(labelsize=8)
    axes[0].set_ylabel("microseconds a step")
    shares = results["share_of_a_step"]
    parts = sorted(shares["plain"], key=shares["plain"].get)
    for row, (name, its) in enumerate(shares.items()):
        places = [place + 0.4 * row for place in range(len(parts))]
        values = [its.get(part, 0.0) for part in parts]
        axes[-1].barh(places, values, 0.38, color=("#64748b", "#d97706")[row], label=name)
        for place, value in zip(places, values, strict=True):
            axes[-1].annotate(f" {value:.1%}", (value, place), va="center", fontsize=8)
    axes[-1].set_yticks(range(len(parts)), parts)
    axes[-1].set_xlim(0, 1.25)
    axes[-1].set_xlabel("share of a step, 64 running")
    axes[-1].legend(frameon=False, loc="lower right")
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    return save_figure(figure, path)


def run(out: Path, quick: bool, report: Report) -> dict[str, Any]:
    """Measure, and leave planning_cost.json and .png in a folder."""
    found = record("planning cost", {"quick": quick}, measure(quick, report))
    save(found, out / "planning_cost.json")
    plot(found["results"], out / "planning_cost.png")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--quick", action="store_true", help="a short look")
    given = parser.parse_args()
    run(given.out, given.quick, lambda line: print(line, file=sys.stderr, flush=True))


if __name__ == "__main__":
    main()
