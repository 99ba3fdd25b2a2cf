"""What a decode step of the bundled model costs the host, one optimisation after another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from torch.utils._python_dispatch import _disable_current_modes

from grader.course.paths import MODELS
from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.generation.events import Finished
from nanovllm.generation.params import SamplingParams
from nanovllm.model.loader import load_model
from nanovllm.model.transformer import Transformer
from nanovllm.paging.store import PagedStore
from nanovllm.performance.ahead_engine import AheadEngine
from nanovllm.performance.counting import CountOps
from nanovllm.performance.fusion import FusedTransformer
from nanovllm.performance.replay import recorded_capture

PROMPTS = ([5, 6, 7, 8], [40, 41, 42], [90, 91, 92, 93, 94], [120, 121])
NEW_TOKENS = 12
CONFIG = EngineConfig(max_num_seqs=4, max_model_len=64)


@dataclass(frozen=True)
class Cost:
    """Of the decode steps of one run: what the host launched in each, and how often it waited."""

    launches: float
    waits: int
    idle_waits: int
    texts: tuple[tuple[int, ...], ...]


def one_launch(function: Callable[[], None], pool: Any = None) -> tuple[Callable[[], None], Any]:
    """A capture whose replay the host sees as one launch."""
    replay, pool = recorded_capture(function, pool)

    def launch() -> None:
        launch.count += 1  # type: ignore[attr-defined]
        with _disable_current_modes():
            replay()

    launch.count = 0  # type: ignore[attr-defined]
    one_launch.made.append(launch)  # type: ignore[attr-defined]
    return launch, pool


one_launch.made = []  # type: ignore[attr-defined]


def plain(model: Transformer, store: PagedStore) -> Engine:
    return Engine(model, CONFIG, store=store)


def fused(model: Transformer, store: PagedStore) -> Engine:
    """Lab 04's engine, its model replaced by yours."""
    engine = Engine(model, CONFIG, store=store)
    engine.model = FusedTransformer(model)  # type: ignore[assignment]
    return engine


def graphs(model: Transformer, store: PagedStore) -> Engine:
    return AheadEngine(model, CONFIG, store=store, capture=one_launch, ahead=False)


def ahead(model: Transformer, store: PagedStore) -> Engine:
    return AheadEngine(model, CONFIG, store=store, capture=one_launch)


STAGES = {"plain": plain, "fused": fused, "+ graphs": graphs, "+ steps ahead": ahead}


def measure(make: Callable[[Transformer, PagedStore], Engine], model: Transformer) -> Cost:
    """Run the prompts to their ends; the first step, which computes the prompts, is not counted."""
    store = PagedStore(model.config, 40, 16)
    engine = make(model, store)
    params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
    for number, prompt in enumerate(PROMPTS):
        engine.add_request(list(prompt), params, seed=0, request_id=number)
    texts: dict[int, tuple[int, ...]] = {}
    engine.step()
    launches: list[Any] = one_launch.made  # type: ignore[attr-defined]
    before, steps = sum(one.count for one in launches), 0
    with CountOps() as ops:
        while engine.has_unfinished:
            steps += 1
            for event in engine.step():
                if isinstance(event, Finished):
                    texts[event.request_id] = tuple(event.completion.token_ids)
    replays = sum(one.count for one in launches) - before
    flights = getattr(engine, "flights", None)
    waits = (steps, steps) if flights is None else (flights.waits - 1, flights.idle_waits)
    if flights is not None and flights.rows_launched == 0:
        waits = (steps, steps)
    return Cost((ops.total + replays) / steps, *waits, tuple(texts[i] for i in sorted(texts)))


def main() -> None:
    """The table."""
    model = load_model(MODELS / "target")
    table = Table(
        title=f"{len(PROMPTS)} requests, {NEW_TOKENS} tokens each, on the bundled model",
        caption="launches: operations that the host starts in a decode step; a replayed graph is "
        "one. Idle waits: the device has nothing to do meanwhile. Not verified on a GPU.",
    )
    table.add_column("engine", no_wrap=True)
    for column in ("launches a step", "share", "waits", "idle waits", "texts"):
        table.add_column(column, justify="right")
    base: Cost | None = None
    for name, make in STAGES.items():
        cost = measure(make, model)
        base = base or cost
        same = "the same" if cost.texts == base.texts else "DIFFERENT"
        share = f"{cost.launches / base.launches:.0%}"
        waits = (str(cost.waits), str(cost.idle_waits))
        table.add_row(name, f"{cost.launches:.0f}", share, *waits, same)
    Console().print(table)


if __name__ == "__main__":
    main()
