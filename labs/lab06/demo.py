"""What the kernels buy: bytes moved, counted to the last one, and the same text by your kernels."""

import time

import torch
from rich.console import Console
from rich.table import Table
from torch.nn.functional import silu

from grader.course.paths import MODELS
from nanovllm.batching.config import EngineConfig
from nanovllm.batching.offline import generate_continuous
from nanovllm.generation.params import SamplingParams
from nanovllm.kernels.attention import TritonPagedCache, triton_paged_attention
from nanovllm.kernels.rms_norm import fused_add_rms_norm_
from nanovllm.kernels.rope import rope_
from nanovllm.kernels.runtime import DEVICE, INTERPRETED
from nanovllm.kernels.silu import silu_and_mul
from nanovllm.kernels.traffic import torch_bytes, traced
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import load_model
from nanovllm.model.norms import rms_norm
from nanovllm.model.rope import apply_rope
from nanovllm.paging.attention import paged_attention
from nanovllm.paging.batch import make_batch
from nanovllm.paging.block_table import BlockTable
from nanovllm.paging.cache import PagedCache
from nanovllm.paging.store import PagedStore
from nanovllm.tokenization.tokenizer import Tokenizer

TOKENS, CONTEXT, BLOCK = 4, 100, 16
PROMPT, LENGTH = "Mia's code is 7342. What is Mia's code?", 8


def operations(config: ModelConfig) -> dict:
    """Name -> (by torch, by a kernel): one layer's work on 4 decoding tokens, in bfloat16."""
    hidden, heads, groups = config.hidden_size, config.num_heads, config.num_kv_heads
    dim, inner = config.head_dim, config.intermediate_size

    def half(*shape: int) -> torch.Tensor:
        return torch.randn(shape).to(torch.bfloat16)

    x, residual, weight = half(TOKENS, hidden), half(TOKENS, hidden), half(hidden)
    q, k = half(TOKENS, heads, dim), half(TOKENS, groups, dim)
    angles = torch.randn(TOKENS, dim // 2)
    gate_up = half(TOKENS, 2 * inner)
    width = -(-CONTEXT // BLOCK)
    tables = [BlockTable(BLOCK, list(range(i * width, (i + 1) * width))) for i in range(TOKENS)]
    batch = make_batch([(table, CONTEXT - 1, CONTEXT) for table in tables])
    cache = PagedCache(config, TOKENS * width, BLOCK, torch.bfloat16)
    layer = (cache.k[0], cache.v[0], batch)
    return {
        "residual add + RMSNorm": (
            lambda: rms_norm(x + residual, weight, 1e-6),
            lambda: fused_add_rms_norm_(x, residual, weight, 1e-6),
        ),
        "RoPE on q and k": (
            lambda: (apply_rope(q, angles.cos(), angles.sin()), apply_rope(k, angles, angles)),
            lambda: rope_(q, k, angles.cos(), angles.sin()),
        ),
        "SiLU and multiply": (
            lambda: silu(gate_up[:, :inner]) * gate_up[:, inner:],
            lambda: silu_and_mul(gate_up),
        ),
        f"attention over {CONTEXT} tokens": (
            lambda: paged_attention(q, *layer),
            lambda: triton_paged_attention(q, *layer),
        ),
    }


def show_traffic(config: ModelConfig, console: Console) -> None:
    """The table of bytes, and by how much the kernels move fewer."""
    table = Table(title=f"bytes read and written, one layer, {TOKENS} decoding tokens, bfloat16")
    for name in ("", "torch", "your kernel", "times fewer"):
        table.add_column(name, justify="left" if not name else "right")
    totals = [0, 0]
    for name, (by_torch, by_kernel) in operations(config).items():
        with traced() as trace:
            by_kernel()
        pair = torch_bytes(by_torch), trace.nbytes
        totals = [total + one for total, one in zip(totals, pair, strict=True)]
        table.add_row(name, f"{pair[0]:,}", f"{pair[1]:,}", f"{pair[0] / pair[1]:.1f}")
    table.add_section()
    table.add_row("all", *(f"{t:,}" for t in totals), f"[bold green]{totals[0] / totals[1]:.1f}[/]")
    console.print(table)


def main() -> None:
    """Count the bytes, then let the engine answer with and without the kernels."""
    console = Console()
    model = load_model(MODELS / "target", device=DEVICE)
    tokenizer = Tokenizer.from_pretrained(MODELS / "target")
    config = model.config
    if INTERPRETED:
        show_traffic(config, console)
    else:
        console.print("Bytes are counted in the interpreter: TRITON_INTERPRET=1 lab demo 06")
    texts, seconds = [], []
    for cache_of, attention in (
        (PagedCache, paged_attention),
        (TritonPagedCache, triton_paged_attention),
    ):
        store = PagedStore(
            config,
            num_blocks=16,
            attention=attention,
            cache=cache_of(config, 16, device=DEVICE),
        )
        begin = time.perf_counter()
        result = generate_continuous(
            model,
            [tokenizer.encode(PROMPT)],
            SamplingParams(temperature=0, max_tokens=LENGTH),
            EngineConfig(max_num_seqs=1),
            tokenizer=tokenizer,
            store=store,
        )
        seconds.append(time.perf_counter() - begin)
        texts.append(result.completions[0][0].text)
    console.print(f"torch:   {texts[0]!r}  ({seconds[0]:.1f} s)", highlight=False)
    console.print(f"kernels: {texts[1]!r}  ({seconds[1]:.1f} s)", highlight=False)
    same = texts[0] == texts[1]
    console.print("[green]the same text[/]" if same else "[red]NOT the same text[/]")
    if INTERPRETED:
        console.print("Triton's interpreter on a CPU: right or wrong it can tell, fast it cannot.")
        console.print("[yellow]not verified on a GPU[/]")


if __name__ == "__main__":
    main()
