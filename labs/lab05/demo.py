"""What paging buys: the same memory in slots and in blocks, and who holds which block."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.events import Preempted, Stepped
from nanovllm.batching.slot_store import SlotStore
from nanovllm.generation.events import Finished
from nanovllm.generation.params import SamplingParams
from nanovllm.model.loader import load_model
from nanovllm.model.transformer import Transformer
from nanovllm.paging.manager import BlockManager
from nanovllm.paging.store import PagedStore
from nanovllm.tokenization.tokenizer import Tokenizer

TARGET = Path(__file__).resolve().parents[2] / "models" / "target"
SHARED = "Mia's code is 7342. Tom's code is 1589. Ben has a red ball. Anna lives in a small house. "
ASKED = ("Mia's code is", "Tom's code is", "Ben has a red", "Anna lives in a", "Once upon a time")
REQUESTS, ROOM, LONGEST, BLOCK, SEATS = 24, 768, 192, 16, 16  # seats: most requests at once
MOMENTS = 5  # of the block map
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWX"
COLORS = ("red", "green", "yellow", "blue", "magenta", "cyan")


@dataclass
class Run:
    """What one engine did with the requests."""

    answers: dict[int, tuple[int, ...]] = field(default_factory=dict)
    steps: list[Stepped] = field(default_factory=list)
    preemptions: int = 0
    maps: list[list[list[int]]] = field(default_factory=list)  # owners of each block, a step

    @property
    def computed(self) -> int:
        return sum(chunk.length for step in self.steps for chunk in step.chunks)

    @property
    def at_once(self) -> int:
        return max(step.running for step in self.steps)


def requests(tokenizer: Tokenizer) -> tuple[list[list[int]], list[SamplingParams]]:
    """One beginning for all, then a question each; short and long answers mixed up."""
    texts = [SHARED + ASKED[i % len(ASKED)] for i in range(REQUESTS)]
    lengths = [(7 * i * i + 5 * i) % 61 + 4 for i in range(REQUESTS)]
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in lengths]
    return [tokenizer.encode(text) for text in texts], params


def serve(
    model: Transformer,
    prompts: Sequence[list[int]],
    params: Sequence[SamplingParams],
    store: SlotStore | PagedStore,
    seats: int,
) -> Run:
    """Give all requests to an engine over this store, and look at its blocks after every step."""
    config = EngineConfig(max_num_seqs=seats, max_num_batched_tokens=128, max_model_len=LONGEST)
    engine = Engine(model, config, store=store)
    for number, (prompt, one) in enumerate(zip(prompts, params, strict=True)):
        engine.add_request(prompt, one, request_id=number)
    run = Run()
    while engine.has_unfinished:
        for event in engine.step():
            if isinstance(event, Finished):
                run.answers[event.request_id] = event.completion.token_ids
            elif isinstance(event, Stepped):
                run.steps.append(event)
            run.preemptions += isinstance(event, Preempted)
        if isinstance(store, PagedStore):
            run.maps.append(owners(store.manager))
    return run


def owners(manager: BlockManager) -> list[list[int]]:
    """The request ids that hold each block."""
    held = manager.owners()
    return [
        [request.sequence.request_id for request in held.get(block_id, [])]
        for block_id in range(manager.num_blocks)
    ]


def picture(blocks: list[list[int]]) -> Text:
    """A letter a block: its request's, # where several share it, a dot where it is free."""
    text = Text()
    for holders in blocks:
        if len(holders) > 1:
            text.append("#", style="bold black on white")
        elif holders:
            number = holders[0]
            text.append(LETTERS[number], style=COLORS[number % len(COLORS)])
        else:
            text.append("·", style="dim")
    return text


def main() -> None:
    """Answer the requests twice with room for the same number of tokens."""
    console = Console()
    torch.set_num_threads(1)  # small products: more threads only wait for one another
    model, tokenizer = load_model(TARGET), Tokenizer.from_pretrained(TARGET)
    prompts, params = requests(tokenizer)
    slots = ROOM // LONGEST
    runs = {
        "slots": serve(model, prompts, params, SlotStore(model.config, slots, LONGEST), slots),
        "blocks": serve(
            model, prompts, params, store := PagedStore(model.config, ROOM // BLOCK, BLOCK), SEATS
        ),
    }
    maps = runs["blocks"].maps
    console.print("Who holds which block (a letter a request, # shared, · free):", highlight=False)
    for i in range(MOMENTS):
        step = i * (len(maps) - 1) // MOMENTS
        console.print(Text(f"step {step + 1:>3} ").append_text(picture(maps[step])))
    table = Table(title=f"{REQUESTS} requests, {ROOM} places")
    for name in ("", *runs):
        table.add_column(name, justify="left" if not name else "right")
    table.add_row("requests at once", *(str(run.at_once) for run in runs.values()))
    table.add_row("steps", *(str(len(run.steps)) for run in runs.values()))
    table.add_row("tokens computed", *(f"{run.computed:,}" for run in runs.values()))
    table.add_row("preemptions", *(str(run.preemptions) for run in runs.values()))
    console.print(table)
    stats = store.prefix_stats
    same = runs["slots"].answers == runs["blocks"].answers
    console.print(
        f"Both gave {'[green]the same answers[/]' if same else '[red]NOT the same answers[/]'}; "
        f"of {stats.queries:,} tokens asked for, {stats.hits:,} were in the prefix cache.",
        highlight=False,
    )


if __name__ == "__main__":
    main()
