"""What the KV cache buys: the same text from the bundled model, with a cache and without."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import tokenizers
import torch
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from torch import Tensor

from nanovllm.model.accounting import kv_bytes_per_token, tokens_computed
from nanovllm.model.attention import RecomputeAttend
from nanovllm.model.cache import ContiguousCache, forward_cached
from nanovllm.model.loader import load_model
from nanovllm.model.transformer import Transformer

TARGET = Path(__file__).resolve().parents[2] / "models" / "target"
PROMPT = "Once upon a time"
TOKENS = 160
BARS = " ▁▂▃▄▅▆▇█"


@dataclass
class Run:
    """One generation: its tokens, the tokens that passed the model, the seconds of each step."""

    tokens: list[int] = field(default_factory=list)
    computed: int = 0
    seconds: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return len(self.tokens) / sum(self.seconds)


def generate(model: Transformer, prompt: list[int], step: Callable[[Tensor], Tensor]) -> Run:
    """Greedy tokens, the end of the text not heeded; `step` sees the whole sequence so far."""
    run = Run()
    counted = model.layers[0].register_forward_hook(
        lambda layer, inputs, output: setattr(run, "computed", run.computed + len(output))
    )
    while len(run.tokens) < TOKENS:
        start = time.perf_counter()
        hidden = step(torch.tensor(prompt + run.tokens))
        run.tokens.append(int(model.logits(hidden[-1:]).argmax()))
        run.seconds.append(time.perf_counter() - start)
    counted.remove()
    return run


def without_cache(model: Transformer) -> Callable[[Tensor], Tensor]:
    attend = RecomputeAttend(model.config)
    return lambda ids: model(ids, torch.arange(len(ids)), attend)


def with_cache(model: Transformer, cache: ContiguousCache) -> Callable[[Tensor], Tensor]:
    return lambda ids: forward_cached(model, cache, ids[cache.length :])


def bars(seconds: list[float], top: float, groups: int = 32) -> str:
    """Seconds of a step, in `groups` columns from the first token to the last."""
    size = len(seconds) // groups
    # The least of each group: what the step costs when nothing else disturbs the machine.
    least = [min(seconds[i * size : (i + 1) * size]) for i in range(groups)]
    return "".join(BARS[min(8, 1 + int(7 * value / top))] for value in least)


def main() -> None:
    """Generate the same text twice and compare what it took."""
    console = Console()
    tokenizer = tokenizers.Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    model = load_model(TARGET)
    prompt = tokenizer.encode(PROMPT).ids
    cache = ContiguousCache(model.config, capacity=len(prompt) + TOKENS)
    forward_cached(model, cache, torch.tensor(prompt))  # warm up
    cache.reset()
    cached = generate(model, prompt, with_cache(model, cache))
    plain = generate(model, prompt, without_cache(model))

    text = tokenizer.decode(cached.tokens)
    console.print(Panel(f"[bold]{PROMPT}[/]{text[:300]} ...", title="the text"))
    table = Table(title=f"{TOKENS} tokens after a prompt of {len(prompt)}")
    for name in ("", "without cache", "with cache"):
        table.add_column(name, justify="left" if not name else "right")
    table.add_row("tokens through the model", f"{plain.computed:,}", f"{cached.computed:,}")
    expected = [tokens_computed(len(prompt), TOKENS, kind) for kind in (False, True)]
    table.add_row("... by your accounting", *(f"{count:,}" for count in expected))
    table.add_row("seconds", *(f"{sum(run.seconds):.2f}" for run in (plain, cached)))
    table.add_row("tokens/s", f"{plain.rate:.0f}", f"[bold green]{cached.rate:.0f}[/]")
    memory = f"{cache.nbytes / 1024:,.0f} KiB"
    table.add_row("memory for K and V", "0 KiB", memory)
    console.print(table)
    top = max(min(plain.seconds[-5:]), min(cached.seconds[-5:]))
    console.print("time of a step, from the first token to the last:")
    console.print(f"  without cache  {bars(plain.seconds, top)}  {1000 * top:.1f} ms at the end")
    last = 1000 * min(cached.seconds[-5:])
    console.print(f"  with cache     {bars(cached.seconds, top)}  {last:.1f} ms at the end")
    same = cached.tokens == plain.tokens
    verdict = "[green]the same tokens[/]" if same else "[red]NOT the same tokens[/]"
    size = kv_bytes_per_token(model.config, dtype_bytes=4)
    console.print(
        f"Both gave {verdict}; the cache computed {plain.computed / cached.computed:.0f} times "
        f"fewer tokens and paid {size:,} bytes for each it keeps."
    )


if __name__ == "__main__":
    main()
