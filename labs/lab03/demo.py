"""What a loop of your own does: one request in slow motion, four samplers, twelve prompts."""

import time
from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from nanovllm.generation.beam import BeamSearchParams, beam_search
from nanovllm.generation.events import Event, Finished, Prefilled, TokenGenerated
from nanovllm.generation.latency import percentile, timelines
from nanovllm.generation.loop import generate
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.static_batch import StaticResult, generate_static
from nanovllm.model.loader import load_model
from nanovllm.model.transformer import Transformer
from nanovllm.tokenization.tokenizer import Tokenizer

TARGET = Path(__file__).resolve().parents[2] / "models" / "target"
NAMES = ["Mia", "Leo", "Anna", "Omar", "Paula", "Henry", "Clara", "Yuki", "Luca", "Nora", "Umar"]
OPENINGS = ["Once upon a time", "The", "One day", "It was late, but", "Clara and Leo went to"]
SAMPLERS = {
    "greedy": SamplingParams(temperature=0, max_tokens=24),
    "temperature 0.8": SamplingParams(temperature=0.8, seed=1, max_tokens=24),
    "temperature 2": SamplingParams(temperature=2.0, seed=1, max_tokens=24),
    "... with top_p 0.9": SamplingParams(temperature=2.0, top_p=0.9, seed=1, max_tokens=24),
    "... with top_k 5": SamplingParams(temperature=2.0, top_k=5, seed=1, max_tokens=24),
}


def one_request(console: Console, model: Transformer, tokenizer: Tokenizer) -> None:
    """Prefill and decode of one long prompt, in milliseconds."""
    facts = " ".join(f"{name}'s code is {3571 + 417 * i}." for i, name in enumerate(NAMES))
    prompt = tokenizer.encode(f"{facts} {NAMES[0]}'s code is")
    params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
    list(generate(model, prompt, params))  # warm up
    arrival = time.perf_counter()
    events = list(generate(model, prompt, params, tokenizer=tokenizer))
    (line,) = timelines(events, {0: arrival}).values()
    gaps = line.inter_token_latencies
    table = Table(title=f"One request: a prompt of {len(prompt)} tokens, {len(gaps) + 1} new ones")
    table.add_column("")
    table.add_column("time", justify="right")
    table.add_column("tokens/s", justify="right")
    prefill = next(e.time for e in events if isinstance(e, Prefilled)) - arrival
    table.add_row("prefill", f"{1e3 * prefill:.1f} ms", f"{len(prompt) / prefill:,.0f}")
    table.add_row("TTFT", f"{1e3 * line.ttft:.1f} ms", "")
    table.add_row("TPOT", f"{1e3 * line.tpot:.2f} ms", f"{1 / line.tpot:,.0f}")
    for q in (50, 99):
        table.add_row(f"inter-token latency, p{q}", f"{1e3 * percentile(gaps, q):.2f} ms", "")
    console.print(table)
    times = len(prompt) / prefill * line.tpot
    console.print(f"A prompt token costs {times:.0f} times less than a generated one.")
    answer = events[-1].completion.text.split(".")[0]
    console.print(f"Asked for {NAMES[0]}'s code, 3571, it says:[bold]{answer}[/]\n")


def samplers(console: Console, model: Transformer, tokenizer: Tokenizer) -> None:
    """The same prompt under five samplers, and under beam search."""
    prompt = tokenizer.encode("One day")
    table = Table(title='After "One day"', show_lines=True)
    table.add_column("sampler", no_wrap=True)
    table.add_column("text")
    for name, params in SAMPLERS.items():
        events = list(generate(model, prompt, params, tokenizer=tokenizer))
        table.add_row(name, events[-1].completion.text.strip())
    best = beam_search(model, prompt, BeamSearchParams(beam_width=4, max_tokens=24))[0]
    table.add_row("beam search, width 4", tokenizer.decode(list(best.token_ids)).strip())
    console.print(table)


def batch_chart(prompts: list[list[int]], result: StaticResult) -> str:
    """A line a row: pads, prompt, generated tokens, and places computed for nobody."""
    width = max(len(prompt) for prompt in prompts)
    longest = max(len(samples[0].token_ids) for samples in result.completions)
    lines = []
    for prompt, samples in zip(prompts, result.completions, strict=True):
        tokens = len(samples[0].token_ids)
        lines.append(
            f"[red]{'░' * (width - len(prompt))}[/][blue]{'█' * len(prompt)}[/]"
            f"[green]{'█' * tokens}[/][red]{'░' * (longest - tokens)}[/]"
        )
    return "\n".join(lines)


def twelve_prompts(console: Console, model: Transformer, tokenizer: Tokenizer) -> None:
    """One at a time, then as one static batch."""
    prompts = [tokenizer.encode(OPENINGS[i % len(OPENINGS)]) for i in range(12)]
    params = [
        SamplingParams(temperature=0.8, seed=i, max_tokens=5 + (i * 13) % 60, ignore_eos=True)
        for i in range(12)
    ]
    start = time.perf_counter()
    alone = [
        event.completion
        for prompt, each in zip(prompts, params, strict=True)
        for event in generate(model, prompt, each)
        if isinstance(event, Finished)
    ]
    middle = time.perf_counter()
    events: list[Event] = []
    result = generate_static(model, prompts, params, on_event=events.append)
    end = time.perf_counter()
    tokens = sum(isinstance(event, TokenGenerated) for event in events)
    same = [samples[0].token_ids for samples in result.completions] == [c.token_ids for c in alone]
    table = Table(title=f"Twelve prompts, {tokens} new tokens")
    for name in ("", "one at a time", "static batch"):
        table.add_column(name, justify="right" if name else "left")
    seconds = (middle - start, end - middle)
    table.add_row("seconds", *(f"{s:.2f}" for s in seconds))
    rates = [tokens / s for s in seconds]
    table.add_row("tokens/s", f"{rates[0]:.0f}", f"[bold green]{rates[1]:.0f}[/]")
    waste = result.waste
    useful = waste.prompt + waste.decode
    table.add_row("tokens through the model", f"{useful}", f"{waste.computed}")
    table.add_row("... of them for nobody", "0", f"[red]{100 * waste.wasted_share:.0f} %[/]")
    console.print(table)
    console.print(
        Panel(
            batch_chart(prompts, result),
            title="[blue]prompt[/] [green]generated[/] [red]░ computed for nobody[/]",
            expand=False,
        )
    )
    verdict = "[green]the same tokens[/]" if same else "[red]NOT the same tokens[/]"
    console.print(f"Both gave {verdict}, sampled with 12 seeds. Lab 04 fills the places marked ░.")


def main() -> None:
    """Run the three parts."""
    console = Console()
    model = load_model(TARGET)
    tokenizer = Tokenizer.from_pretrained(TARGET)
    one_request(console, model, tokenizer)
    samplers(console, model, tokenizer)
    twelve_prompts(console, model, tokenizer)


if __name__ == "__main__":
    main()
