"""What the KV cache buys, in counts: the same text from your engine, with a cache and without."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import tokenizers
import torch
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from nanovllm.model.accounting import generation_flops, kv_bytes_per_token, tokens_computed
from nanovllm.model.attend import RecomputeAttend
from nanovllm.model.cache import ContiguousCache, forward_cached
from nanovllm.model.loader import load_model

TARGET = Path(__file__).resolve().parents[2] / "models" / "target"
PROMPT = "Once upon a time"
TOKENS = 160
BARS = " ▁▂▃▄▅▆▇█"

Step = Callable[[torch.Tensor], torch.Tensor]  # the whole sequence so far -> hidden states


@dataclass
class Run:
    """One generation: its tokens, and how many tokens passed the model in each step."""

    tokens: list[int] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)


def generate(model: torch.nn.Module, prompt: list[int], step: Step) -> Run:
    """Greedy tokens; the end of the text is not heeded, so that there are always as many."""
    run, rows = Run(), []
    counted = model.layers[0].register_forward_hook(lambda _, given, out: rows.append(len(out)))
    while len(run.tokens) < TOKENS:
        rows.clear()
        hidden = step(torch.tensor(prompt + run.tokens))
        run.tokens.append(int(model.logits(hidden[-1:]).argmax()))
        run.computed.append(sum(rows))
    counted.remove()
    return run


def bars(counts: list[int], top: int, groups: int = 32) -> str:
    """Tokens computed in a step, in `groups` columns from the first step to the last."""
    size = len(counts) // groups
    first = [counts[i * size] for i in range(groups)]
    return "".join(BARS[max(1, round(8 * count / top))] for count in first)


def main() -> None:
    """Generate the same text twice and compare what it took."""
    torch.set_num_threads(1)  # so small a model is not faster on several
    console = Console()
    tokenizer = tokenizers.Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    model = load_model(TARGET)
    prompt = tokenizer.encode(PROMPT).ids
    cache, attend = (
        ContiguousCache(model.config, len(prompt) + TOKENS),
        RecomputeAttend(model.config),
    )
    cached = generate(model, prompt, lambda ids: forward_cached(model, cache, ids[cache.length :]))
    plain = generate(model, prompt, lambda ids: model(ids, torch.arange(len(ids)), attend))

    text = tokenizer.decode(cached.tokens)
    console.print(Panel(f"[bold]{PROMPT}[/]{text[:300]} ...", title="the text"))
    table = Table(title=f"{TOKENS} tokens after a prompt of {len(prompt)}")
    for name in ("", "without cache", "with cache"):
        table.add_column(name, justify="left" if not name else "right")
    totals = [sum(run.computed) for run in (plain, cached)]
    table.add_row("tokens through the model", *(f"{total:,}" for total in totals))
    expected = [tokens_computed(len(prompt), TOKENS, kind) for kind in (False, True)]
    table.add_row("... by your accounting", *(f"{count:,}" for count in expected))
    flops = [generation_flops(model.config, len(prompt), TOKENS, kind) for kind in (False, True)]
    table.add_row("GFLOP, by your accounting", *(f"{count / 1e9:.2f}" for count in flops))
    table.add_row("memory for K and V", "0 KiB", f"{cache.nbytes / 1024:,.0f} KiB")
    console.print(table)
    console.print("tokens through the model in a step, from the first step to the last:")
    top = max(plain.computed)
    for name, run in (("without cache", plain), ("with cache   ", cached)):
        drawn = bars(run.computed, top)
        console.print(f"  {name}  {drawn}  {run.computed[-1]} in the last step")
    same = cached.tokens == plain.tokens
    verdict = "[green]the same tokens[/]" if same else "[red]NOT the same tokens[/]"
    size = kv_bytes_per_token(model.config, dtype_bytes=4)
    console.print(
        f"Both gave {verdict}; the cache computed {totals[0] / totals[1]:.0f} times fewer tokens "
        f"and keeps {size:,} bytes for each."
    )


if __name__ == "__main__":
    main()
