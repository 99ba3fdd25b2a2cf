"""What continuous batching buys: the same requests in static batches and through the engine."""

import tempfile
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from nanovllm.batching.config import EngineConfig
from nanovllm.batching.events import EngineEvent, Preempted
from nanovllm.batching.offline import ContinuousResult, generate_continuous
from nanovllm.batching.plan import Plan
from nanovllm.batching.replay import LEGEND, Replay
from nanovllm.batching.request import Request
from nanovllm.batching.simulated import CountingStore
from nanovllm.batching.slot_store import SlotStore
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.static_batch import generate_static
from nanovllm.model.loader import load_model
from nanovllm.model.transformer import Transformer
from nanovllm.tokenization.tokenizer import Tokenizer

TARGET = Path(__file__).resolve().parents[2] / "models" / "target"
TEXTS = ("Once upon a time", "Tom has a red ball.", "Mia's code is 7342. What is Mia's code?")
LONG = "Mia went to the park. She saw a dog and a cat. " * 3
REQUESTS, SEQS, BUDGET, PLACES = 24, 4, 64, 100


class TightStore:
    """Slots that share fewer places than they have, so that requests have to be preempted."""

    def __init__(self, slots: SlotStore, places: int) -> None:
        self.slots, self.pool = slots, CountingStore(places)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.slots, name)

    @property
    def total_tokens(self) -> int:
        return self.pool.total_tokens

    @property
    def free_tokens(self) -> int:
        return self.pool.free_tokens

    def fits(self, num_tokens: int) -> bool:
        return self.pool.fits(num_tokens) and self.slots.fits(num_tokens)

    def can_admit(self, request: Request) -> bool:
        return self.pool.can_admit(request) and self.slots.can_admit(request)

    def admit(self, request: Request) -> int:
        self.pool.admit(request)
        return self.slots.admit(request)

    def reserve(self, request: Request, num_tokens: int) -> bool:
        return self.pool.reserve(request, num_tokens) and self.slots.reserve(request, num_tokens)

    def commit(self, plan: Plan) -> None:
        self.slots.commit(plan)

    def suspend(self, request: Request) -> None:
        self.pool.suspend(request)
        self.slots.suspend(request)

    def release(self, request: Request) -> None:
        self.pool.release(request)
        self.slots.release(request)


def tight_store(model: Transformer, slots: int, places: int) -> TightStore:
    """So many slots for a model, which have so many places in all."""
    return TightStore(SlotStore(model.config, slots, model.config.max_position), places)


def requests(tokenizer: Tokenizer) -> tuple[list[list[int]], list[SamplingParams]]:
    """Short and long prompts, short and long answers, all mixed up."""
    texts = [LONG if i % 6 == 5 else TEXTS[i % 3] for i in range(REQUESTS)]
    lengths = [(7 * i * i + 5 * i) % 41 + 4 for i in range(REQUESTS)]
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in lengths]
    return [tokenizer.encode(text) for text in texts], params


def main() -> None:
    """Answer the requests both ways, then with too little room, and show who ran when."""
    torch.set_num_threads(1)  # small products: more threads only wait for one another
    console = Console()
    model, tokenizer = load_model(TARGET), Tokenizer.from_pretrained(TARGET)
    prompts, params = requests(tokenizer)
    config = EngineConfig(max_num_seqs=SEQS, max_num_batched_tokens=BUDGET)
    events: list[EngineEvent] = []
    continuous = generate_continuous(model, prompts, params, config, on_event=events.append)
    static = generate_static(model, prompts, params, max_num_seqs=SEQS)

    console.print(Replay(events).text(0, 60), highlight=False)
    console.print(f"[dim]{LEGEND}[/]\n", highlight=False)
    count = sum(p.max_tokens for p in params)
    table = Table(title=f"{REQUESTS} requests, {count} tokens, {SEQS} at a time")
    for name in ("", "static batches", "continuous"):
        table.add_column(name, justify="left" if not name else "right")
    computed = (static.waste.computed, continuous.tokens_computed)
    table.add_row("tokens through the model", *(f"{n:,}" for n in computed))
    steps = sum(max(p.max_tokens for p in params[i : i + SEQS]) for i in range(0, REQUESTS, SEQS))
    table.add_row("steps", f"{steps}", f"{continuous.steps}")
    table.add_row("tokens in a step", *(f"{n / s:.1f}" for n, s in zip(computed, (steps,
                  continuous.steps), strict=True)))  # fmt: skip
    console.print(table)
    same = static.completions == continuous.completions
    verdict = "[green]the same answers[/]" if same else "[red]NOT the same answers[/]"
    console.print(
        f"Both gave {verdict}; the static batches computed "
        f"{computed[0] / computed[1]:.1f} times as many tokens.\n"
    )
    short_of_room(console, model, prompts[:8], params[:8], config, continuous)
    page = Replay(events).save(Path(tempfile.gettempdir()) / "lab04-replay.html")
    console.print(f"The first run, to scale: {page}", highlight=False, soft_wrap=True)


def short_of_room(
    console: Console,
    model: Transformer,
    prompts: list[list[int]],
    params: list[SamplingParams],
    config: EngineConfig,
    before: ContinuousResult,
) -> None:
    """The first of the requests once more, in a store that they fill."""
    events: list[EngineEvent] = []
    store = tight_store(model, SEQS, PLACES)
    again = generate_continuous(model, prompts, params, config, store=store, on_event=events.append)
    out = sum(isinstance(event, Preempted) for event in events)
    same = again.completions == before.completions[: len(prompts)]
    console.print(f"[bold]Room for {PLACES} tokens[/], the first {len(prompts)} requests:")
    console.print(Replay(events).text(0, 60), highlight=False)
    needed = sum(len(p) + q.max_tokens - 1 for p, q in zip(prompts, params, strict=True))
    console.print(
        f"{out} preemptions; {again.tokens_computed - needed} tokens were computed again; "
        f"{'[green]the same answers[/]' if same else '[red]NOT the same answers[/]'}.\n"
    )


if __name__ == "__main__":
    main()
