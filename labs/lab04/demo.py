"""What continuous batching buys: the same requests in static batches and through the engine."""

import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from nanovllm.batching.config import EngineConfig
from nanovllm.batching.offline import generate_continuous
from nanovllm.batching.replay import LEGEND, Replay
from nanovllm.generation.events import TokenGenerated
from nanovllm.generation.latency import percentile, timelines
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.static_batch import generate_static
from nanovllm.model.loader import load_model
from nanovllm.tokenization.tokenizer import Tokenizer

TARGET = Path(__file__).resolve().parents[2] / "models" / "target"
TEXTS = ("Once upon a time", "Tom has a red ball.", "Mia's code is 7342. What is Mia's code?")
LONG = "Mia went to the park. She saw a dog and a cat. " * 3
REQUESTS, SEATS, BUDGET = 24, 4, 64


def requests(tokenizer: Tokenizer) -> tuple[list[list[int]], list[SamplingParams]]:
    """Short and long prompts, short and long answers, all mixed up."""
    texts = [LONG if i % 6 == 5 else TEXTS[i % 3] for i in range(REQUESTS)]
    lengths = [(7 * i * i + 5 * i) % 41 + 4 for i in range(REQUESTS)]
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in lengths]
    return [tokenizer.encode(text) for text in texts], params


def main() -> None:
    """Answer the requests both ways, and show who ran when."""
    console = Console()
    model, tokenizer = load_model(TARGET), Tokenizer.from_pretrained(TARGET)
    prompts, params = requests(tokenizer)
    config = EngineConfig(max_num_seqs=SEATS, max_num_batched_tokens=BUDGET)
    generate_continuous(model, prompts[:2], params[:2], config)  # warm up; a missing task shows now
    generate_static(model, prompts[:2], params[0])
    seen: dict[str, list] = {"static": [], "continuous": []}
    seconds = {}
    start = time.perf_counter()
    static = generate_static(
        model, prompts, params, max_num_seqs=SEATS, on_event=seen["static"].append
    )
    seconds["static"] = time.perf_counter() - start
    begin = time.perf_counter()
    continuous = generate_continuous(
        model, prompts, params, config, on_event=seen["continuous"].append
    )
    seconds["continuous"] = time.perf_counter() - begin

    console.print(Replay(seen["continuous"]).text(0, 64), highlight=False)
    console.print(f"[dim]{LEGEND}[/]\n", highlight=False)
    count = sum(p.max_tokens for p in params)
    table = Table(title=f"{REQUESTS} requests, {count} tokens, {SEATS} at a time")
    for name in ("", "static batches", "continuous"):
        table.add_column(name, justify="left" if not name else "right")
    computed = (static.waste.computed, continuous.tokens_computed)
    table.add_row("tokens through the model", *(f"{n:,}" for n in computed))
    steps = sum(max(p.max_tokens for p in params[i : i + SEATS]) for i in range(0, REQUESTS, SEATS))
    table.add_row("steps", f"{steps}", f"{continuous.steps}")
    rates = [count / seconds[name] for name in seconds]
    table.add_row("tokens/s", f"{rates[0]:.0f}", f"[bold green]{rates[1]:.0f}[/]")
    for q in (50, 99):
        waits = [
            percentile(_waits(seen[n], t), q) for n, t in zip(seen, (start, begin), strict=True)
        ]
        table.add_row(f"first token after, p{q}", *(f"{wait:.2f} s" for wait in waits))
    console.print(table)
    same = static.completions == continuous.completions
    verdict = "[green]the same answers[/]" if same else "[red]NOT the same answers[/]"
    page = Replay(seen["continuous"]).save(Path(tempfile.gettempdir()) / "lab04-replay.html")
    console.print(
        f"Both gave {verdict}; the static batches computed "
        f"{computed[0] / computed[1]:.1f} times as many tokens."
    )
    console.print(f"The whole run, to scale: {page}", highlight=False, soft_wrap=True)


def _waits(events: list, start: float) -> list[float]:
    tokens = [event for event in events if isinstance(event, TokenGenerated)]
    arrivals = {event.request_id: start for event in tokens}
    return [line.ttft for line in timelines(tokens, arrivals).values()]


if __name__ == "__main__":
    main()
