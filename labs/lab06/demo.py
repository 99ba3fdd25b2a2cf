"""What the kernels buy: bytes moved, counted to the last one, and the same text by your kernels."""

from collections import Counter

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
from nanovllm.kernels.split_decode import choose_splits, split_decode
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
SMS, LONG = 132, 1024  # of an H100; tokens of one user's context


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
            lambda: (apply_rope(q, angles, angles), apply_rope(k, angles, angles)),
            lambda: rope_(q, k, angles, angles),
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


def show_splits(config: ModelConfig, console: Console) -> None:
    """One user's long context: how many programs share it, and the keys of the busiest."""
    heads, groups, dim = config.num_heads, config.num_kv_heads, config.head_dim
    table = Table(title=f"one user, {LONG:,} tokens, {groups} key heads, {SMS} SMs (an H100)")
    for name in ("splits", "programs", "SMs with work", "keys that the busiest one reads"):
        table.add_column(name, justify="right")
    q = torch.randn(1, heads, dim)
    k, v = torch.randn(2, LONG // BLOCK, BLOCK, groups, dim)
    where = torch.arange(LONG // BLOCK).int()[None], torch.tensor([LONG]).int()
    for splits in (1, choose_splits(groups, SMS, LONG, 64)):
        with traced() as trace:
            split_decode(q, k, v, *where, splits)
        keys: Counter[tuple] = Counter()
        for access, elements in trace.elements(k):
            keys[access.launch, access.program] += 0 if access.is_store else len(elements)
        programs = sum(count > 0 for count in keys.values())
        busiest = max(keys.values()) // dim
        table.add_row(*map(str, (splits, programs, min(programs, SMS), busiest)))
    console.print(table)


def main() -> None:
    """Count the bytes and the programs, then let the engine answer with and without the kernels."""
    console = Console()
    model = load_model(MODELS / "target", device=DEVICE)
    tokenizer = Tokenizer.from_pretrained(MODELS / "target")
    config = model.config
    if INTERPRETED:
        show_traffic(config, console)
        show_splits(config, console)
    else:
        console.print("Bytes are counted in the interpreter: TRITON_INTERPRET=1 lab demo 06")
    texts = []
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
        result = generate_continuous(
            model,
            [tokenizer.encode(PROMPT)],
            SamplingParams(temperature=0, max_tokens=LENGTH),
            EngineConfig(max_num_seqs=1),
            tokenizer=tokenizer,
            store=store,
        )
        texts.append(result.completions[0][0].text)
    console.print(f"torch:   {texts[0]!r}", highlight=False)
    console.print(f"kernels: {texts[1]!r}", highlight=False)
    same = texts[0] == texts[1]
    console.print("[green]the same text[/]" if same else "[red]NOT the same text[/]")
    if INTERPRETED:
        console.print("Triton's interpreter on a CPU: right or wrong it can tell, fast it cannot.")
        console.print("[yellow]not verified on a GPU[/]")


if __name__ == "__main__":
    main()
