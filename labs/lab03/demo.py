"""What a loop of your own does: a question answered, five samplers, twelve prompts. In counts."""

from pathlib import Path

import torch
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from nanovllm.generation.beam import BeamSearchParams, beam_search
from nanovllm.generation.events import Completion, Finished, TokenGenerated
from nanovllm.generation.latency import ManualClock, percentile, timelines
from nanovllm.generation.loop import generate
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.roofline import H100, least_seconds, step_work
from nanovllm.generation.static_batch import StaticResult, generate_static
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import load_model
from nanovllm.model.transformer import Attend, Transformer
from nanovllm.tokenization.tokenizer import Tokenizer

TARGET = Path(__file__).resolve().parents[2] / "models" / "target"
LLAMA = ModelConfig("llama", 128256, 4096, 32, 32, 8, 128, 14336, 131072)
NAMES = ["Mia", "Leo", "Anna", "Omar", "Paula", "Henry", "Clara", "Yuki", "Luca", "Nora", "Umar"]
OPENINGS = ["Once upon a time", "The", "One day", "It was late, but", "Clara and Leo went to"]
SAMPLERS = {
    "greedy": SamplingParams(temperature=0, max_tokens=24),
    "temperature 0.8": SamplingParams(temperature=0.8, seed=1, max_tokens=24),
    "temperature 2": SamplingParams(temperature=2.0, seed=1, max_tokens=24),
    "... with top_p 0.6": SamplingParams(temperature=2.0, top_p=0.6, seed=1, max_tokens=24),
    "... with top_k 5": SamplingParams(temperature=2.0, top_k=5, seed=1, max_tokens=24),
}


class Steps:
    """The model's passes, and a clock that runs as an H100 with Llama-3-8B would need for them."""

    def __init__(self, model: Transformer) -> None:
        self.sizes: list[int] = []
        self.clock = ManualClock()
        self._cached = 0
        forward = model.forward

        def counted(
            token_ids: torch.Tensor, positions: torch.Tensor, attend: Attend
        ) -> torch.Tensor:
            tokens = len(token_ids)
            work = step_work(LLAMA, 1, tokens, self._cached)
            self.clock.advance(least_seconds(work, H100))
            self.sizes.append(tokens)
            self._cached += tokens
            return forward(token_ids, positions, attend)

        model.forward = counted


def one_request(console: Console, tokenizer: Tokenizer) -> None:
    """Prefill and decode of one long prompt that asks for a code at its beginning."""
    model = load_model(TARGET)
    steps = Steps(model)
    facts = " ".join(f"{name}'s code is {3571 + 417 * i}." for i, name in enumerate(NAMES))
    prompt = tokenizer.encode(f"{facts} What is {NAMES[0]}'s code?")
    params = SamplingParams(temperature=0, max_tokens=40, stop=".")
    events = list(generate(model, prompt, params, tokenizer=tokenizer, clock=steps.clock))
    (line,) = timelines(events, {0: 0.0}).values()
    done = events[-1].completion
    prefill, decodes = steps.sizes[0], steps.sizes[1:]
    table = Table(
        title=f"One request: a prompt of {prefill} tokens, {len(done.token_ids)} new ones"
    )
    for name in ("", "steps", "tokens through the model", "a Llama-3-8B on an H100 needs"):
        table.add_column(name, justify="right" if name else "left")
    table.add_row("prefill", "1", str(prefill), f"TTFT {1e3 * line.ttft:.2f} ms")
    gap = percentile(line.inter_token_latencies, 50)
    table.add_row("decode", str(len(decodes)), str(sum(decodes)), f"{1e3 * gap:.2f} ms a token")
    console.print(table)
    console.print(
        f"Reading all {prefill} tokens takes as long as writing {line.ttft / gap:.1f}: "
        "both read all the weights once."
    )
    console.print(f"Asked for {NAMES[0]}'s code, 3571, it says:[bold]{done.text}[/]\n")


def samplers(console: Console, tokenizer: Tokenizer, model: Transformer) -> None:
    """The same prompt under five samplers, and under beam search."""
    prompt = tokenizer.encode("One day")
    table = Table(title='After "One day"', show_lines=True)
    table.add_column("sampler", no_wrap=True)
    table.add_column("text")
    for name, params in SAMPLERS.items():
        events = list(generate(model, prompt, params, tokenizer=tokenizer))
        table.add_row(name, " ".join(events[-1].completion.text.split()))
    best = beam_search(model, prompt, BeamSearchParams(beam_width=4, max_tokens=24))[0]
    table.add_row("beam search, width 4", tokenizer.decode(list(best.token_ids)).strip())
    console.print(table)


def batch_chart(prompts: list[list[int]], result: StaticResult) -> str:
    """A line a row: pads, prompt, generated tokens, and places computed for nobody."""
    width = max(map(len, prompts))
    longest = max(len(samples[0].token_ids) for samples in result.completions)
    lines = []
    for prompt, samples in zip(prompts, result.completions, strict=True):
        tokens = len(samples[0].token_ids)
        lines.append(
            f"[red]{'░' * (width - len(prompt))}[/][blue]{'█' * len(prompt)}[/]"
            f"[green]{'▓' * tokens}[/][red]{'░' * (longest - tokens)}[/]"
        )
    return "\n".join(lines)


def twelve_prompts(console: Console, tokenizer: Tokenizer, model: Transformer) -> None:
    """One at a time, then as one static batch."""
    prompts = [tokenizer.encode(OPENINGS[i % len(OPENINGS)]) for i in range(12)]
    params = [
        SamplingParams(temperature=0.8, seed=i, max_tokens=5 + (i * 13) % 60, ignore_eos=True)
        for i in range(12)
    ]
    alone: list[Completion] = []
    steps_alone = 0
    for prompt, each in zip(prompts, params, strict=True):
        for event in generate(model, prompt, each):
            steps_alone += isinstance(event, TokenGenerated)
            if isinstance(event, Finished):
                alone.append(event.completion)
    result = generate_static(model, prompts, params)
    steps = max(len(samples[0].token_ids) for samples in result.completions)
    same = [samples[0].token_ids for samples in result.completions] == [c.token_ids for c in alone]
    waste = result.waste
    table = Table(title=f"Twelve prompts, {steps_alone} new tokens")
    for name in ("", "one at a time", "static batch"):
        table.add_column(name, justify="right" if name else "left")
    table.add_row("steps (each reads all weights)", f"{steps_alone}", f"[bold green]{steps}[/]")
    table.add_row("tokens through the model", f"{waste.prompt + waste.decode}", f"{waste.computed}")
    table.add_row("... of them for nobody", "0", f"[red]{100 * waste.wasted_share:.0f} %[/]")
    table.add_row("cache places reserved", "", f"{waste.kv_reserved}")
    table.add_row("... of them used", "", f"{waste.kv_used}")
    console.print(table)
    console.print(
        Panel(
            batch_chart(prompts, result),
            title="[blue]█ prompt[/] [green]▓ generated[/] [red]░ computed for nobody[/]",
            expand=False,
        )
    )
    verdict = "[green]the same tokens[/]" if same else "[red]NOT the same tokens[/]"
    console.print(f"Both gave {verdict}, sampled with 12 seeds. Lab 04 fills the places marked ░.")


def main() -> None:
    """Run the three parts."""
    console = Console()
    tokenizer = Tokenizer.from_pretrained(TARGET)
    one_request(console, tokenizer)
    model = load_model(TARGET)
    samplers(console, tokenizer, model)
    twelve_prompts(console, tokenizer, model)


if __name__ == "__main__":
    main()
