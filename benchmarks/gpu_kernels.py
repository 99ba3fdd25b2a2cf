"""Lab 06's kernels and the GPU decode path, measured: `python -m benchmarks.gpu_kernels`.

Each kernel against torch and against what this card was measured to reach in the same run: bytes a
second of a large copy, FLOP/s of a large matrix product. Then decode steps, a prefill, and
nano-vLLM's published workload on random weights of Qwen3-0.6B's shape, beside transformers.
Not verified on a GPU by its authors; without one it says so and ends with exit code 1.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nanovllm.batching.config import EngineConfig
from nanovllm.batching.events import Failed
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.request import weight_of
from nanovllm.gpu.decoder import FusedDecoder
from nanovllm.gpu.engine import GpuEngine
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model
from nanovllm.model.transformer import Transformer
from nanovllm.paging.block_table import blocks_for
from nanovllm.paging.cache import PagedCache
from nanovllm.paging.store import PagedStore
from nanovllm.performance.buffers import DecodeRow
from nanovllm.performance.graphs import Capture, cuda_capture
from nanovllm.performance.runner import StepRunner

SHAPE = ModelConfig(
    "qwen3", 151936, 1024, 28, 16, 8, 128, 3072, 40960, rope_theta=1e6, tie_embeddings=True,
    qk_norm=True,
)  # fmt: skip
BLOCK = 16


@dataclass(frozen=True)
class Line:
    """One measurement; the floor is the larger of bytes / bandwidth and FLOPs / rate."""

    name: str
    microseconds: float
    torch_microseconds: float | None
    floor_microseconds: float

    @property
    def share_of_floor(self) -> float:
        return self.floor_microseconds / self.microseconds


@dataclass(frozen=True)
class Card:
    """What the card reached in this run."""

    name: str
    bytes_per_second: float
    flops_per_second: float

    def floor(self, nbytes: float, flops: float = 0.0) -> float:
        """The least microseconds."""
        return 1e6 * max(nbytes / self.bytes_per_second, flops / self.flops_per_second)


def bench(function: Callable[[], object]) -> float:
    """Median microseconds, the L2 cache cleared between runs (Triton's do_bench)."""
    import triton.testing

    milliseconds = triton.testing.do_bench(function, return_mode="median")
    assert isinstance(milliseconds, float)
    return 1e3 * milliseconds


def measure_card() -> Card:
    """A copy of 1 GiB and a product of 8192 cubed, both in bfloat16."""
    source = torch.empty(2**29, dtype=torch.bfloat16, device="cuda")
    target = torch.empty_like(source)
    copy = bench(lambda: target.copy_(source))
    a, b = torch.randn(2, 8192, 8192, device="cuda", dtype=torch.bfloat16)
    product = bench(lambda: a @ b)
    name = torch.cuda.get_device_name()
    return Card(name, 2 * source.nbytes / (copy * 1e-6), 2 * 8192**3 / (product * 1e-6))


def half(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def small_kernels(card: Card, tokens: int) -> list[Line]:
    """Norm, RoPE and gate on so many tokens of the shape."""
    from nanovllm.kernels.rms_norm import fused_add_rms_norm_
    from nanovllm.kernels.rope import rope_
    from nanovllm.kernels.silu import silu_and_mul
    from nanovllm.model.norms import rms_norm
    from nanovllm.model.rope import apply_rope

    x, residual, weight = half(tokens, 1024), half(tokens, 1024), half(1024)
    q, k, gate_up = half(tokens, 16, 128), half(tokens, 8, 128), half(tokens, 6144)
    angles = torch.rand(tokens, 64, device="cuda")
    cos, sin = angles.cos(), angles.sin()
    cases = {
        "add + RMSNorm": (
            lambda: fused_add_rms_norm_(x, residual, weight, 1e-6),
            lambda: rms_norm(x + residual, weight, 1e-6),
            4 * x.nbytes,
        ),
        "RoPE": (
            lambda: rope_(q, k, cos, sin),
            lambda: (apply_rope(q, cos, sin), apply_rope(k, cos, sin)),
            2 * (q.nbytes + k.nbytes) + 2 * cos.nbytes,
        ),
        "SiLU and multiply": (
            lambda: silu_and_mul(gate_up),
            lambda: F.silu(gate_up[:, :3072]) * gate_up[:, 3072:],
            gate_up.nbytes * 3 // 2,
        ),
    }
    return [
        Line(f"{name}, {tokens} tokens", bench(ours), bench(theirs), card.floor(nbytes))
        for name, (ours, theirs, nbytes) in cases.items()
    ]


def attention(card: Card, contexts: list[int], queries: int) -> Line:
    """Paged attention of `queries` new tokens of each context, against SDPA on plain tensors."""
    from nanovllm.kernels.attention import triton_paged_attention
    from nanovllm.paging.batch import make_batch
    from nanovllm.paging.block_table import BlockTable

    longest, count = max(contexts), len(contexts)
    width = -(-longest // BLOCK)
    order = torch.randperm(count * width).tolist()
    tables = [BlockTable(BLOCK, order[i * width : (i + 1) * width]) for i in range(count)]
    spans = [(t, c - queries, c) for t, c in zip(tables, contexts, strict=True)]
    batch = make_batch(spans, "cuda")
    k_cache, v_cache = half(2, count * width, BLOCK, 8, 128)
    q = half(count * queries, 16, 128)
    plain_q = half(count, 16, queries, 128)
    plain_k, plain_v = half(2, count, 8, longest, 128)
    causal = queries > 1
    ours = bench(lambda: triton_paged_attention(q, k_cache, v_cache, batch))
    theirs = bench(
        lambda: F.scaled_dot_product_attention(
            plain_q, plain_k, plain_v, is_causal=causal, enable_gqa=True
        )
    )
    nbytes = 2 * sum(contexts) * 8 * 128 * 2 + 2 * q.nbytes
    pairs = sum(queries * c - queries * (queries - 1) // 2 for c in contexts)
    name = f"attention, {count} x {queries} queries over {longest}"
    return Line(name, ours, theirs, card.floor(nbytes, 4 * pairs * 16 * 128))


def random_model() -> Transformer:
    return dummy_model(SHAPE, seed=0, dtype=torch.bfloat16, device="cuda")


def decode_steps(card: Card, model: Transformer, num_seqs: int, context: int) -> Line:
    """One captured decode step of the whole model, against the same steps uncaptured."""
    width = blocks_for(context + 1, BLOCK)
    cache = PagedCache(SHAPE, num_seqs * width, BLOCK, torch.bfloat16, "cuda")
    runner = StepRunner(FusedDecoder(model), cache, num_seqs, width * BLOCK)
    rows = []
    for i in range(num_seqs):
        blocks = list(range(i * width, (i + 1) * width))
        slot = blocks[context // BLOCK] * BLOCK + context % BLOCK
        rows.append(DecodeRow(context, slot, blocks, token_id=i + 5))
    filled = runner.graphs.rows_for(num_seqs)
    runner.buffers.load(rows, filled)
    with torch.inference_mode():
        captured = bench(lambda: runner.graphs(filled))
        plain = bench(lambda: runner.graphs.run(filled))
    weights = sum(p.nbytes for p in model.parameters())
    kv = 2 * SHAPE.num_layers * 8 * 128 * 2 * num_seqs * context
    flops = 2 * num_seqs * weights / 2
    name = f"decode step, batch {num_seqs}, context {context} (beside: uncaptured)"
    return Line(name, captured, plain, card.floor(weights + kv, flops))


def workload(count: int, seed: int = 0) -> tuple[list[list[int]], list[int]]:
    """nano-vLLM's bench.py: 100-1024 random tokens in, 100-1024 out."""
    import random

    draw = random.Random(seed)
    prompts = [
        [draw.randint(0, 10000) for _ in range(draw.randint(100, 1024))] for _ in range(count)
    ]
    return prompts, [draw.randint(100, 1024) for _ in range(count)]


def gpu_engine(
    model: Transformer,
    prompts: list[list[int]],
    outputs: list[int],
    capture: Capture = cuda_capture,
) -> GpuEngine:
    """The engine that `LLM` uses on a GPU, with room for all the workload at once."""
    longest = max(len(p) + n for p, n in zip(prompts, outputs, strict=True))
    config = EngineConfig(
        max_num_seqs=len(prompts), max_num_batched_tokens=16384, max_model_len=longest
    )
    blocks = sum(blocks_for(len(p) + n, BLOCK) for p, n in zip(prompts, outputs, strict=True))
    weight = weight_of(model)
    store = PagedStore(
        model.config, blocks, BLOCK, weight.dtype, weight.device, enable_prefix_caching=False
    )
    return GpuEngine(model, config, store=store, capture=capture)


def end_to_end(
    engine: GpuEngine, prompts: list[list[int]], outputs: list[int], temperature: float
) -> float:
    """Output tokens a second of the workload, prefill included."""
    for prompt, length in zip(prompts, outputs, strict=True):
        params = SamplingParams(temperature=temperature, max_tokens=length, ignore_eos=True)
        engine.add_request(prompt, params, seed=0)
    begin = time.perf_counter()
    for event in engine.run():
        if isinstance(event, Failed):
            raise event.error
    return sum(outputs) / (time.perf_counter() - begin)  # the last tokens have been read


def rates_of(model: Transformer, count: int) -> dict[str, float]:
    """The GPU path, greedy and (as in the published workload) at temperature 0.6.

    Before that two short requests, during which torch raises an error wherever the host would
    wait for the device other than for the tokens.
    """
    prompts, outputs = workload(count)
    engine = gpu_engine(model, prompts, outputs)
    for temperature in (0.0, 0.6):
        end_to_end(engine, prompts[:2], [8, 8], temperature)
        torch.cuda.set_sync_debug_mode("error")
        end_to_end(engine, prompts[:2], [32, 32], temperature)
        torch.cuda.set_sync_debug_mode("default")
    return {
        f"gpu path, {name}": end_to_end(engine, prompts, outputs, temperature)
        for name, temperature in (("greedy", 0.0), ("temperature 0.6", 0.6))
    }


def transformers_rate(count: int) -> float:
    """Output tokens a second of transformers' generate, static batches of 32, the same lengths."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=SHAPE.vocab_size,
        hidden_size=SHAPE.hidden_size,
        num_hidden_layers=SHAPE.num_layers,
        num_attention_heads=SHAPE.num_heads,
        num_key_value_heads=SHAPE.num_kv_heads,
        head_dim=SHAPE.head_dim,
        intermediate_size=SHAPE.intermediate_size,
        max_position_embeddings=SHAPE.max_position,
        tie_word_embeddings=True,
    )
    model: Any = Qwen3ForCausalLM(config)  # transformers types neither `to` nor `generate`
    model.to("cuda", torch.bfloat16).eval()
    prompts, outputs = workload(count)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for first in range(0, count, 32):
        some, lengths = prompts[first : first + 32], outputs[first : first + 32]
        width = max(map(len, some))
        ids = torch.tensor([[0] * (width - len(p)) + p for p in some], device="cuda")
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in some], device="cuda")
        most = max(lengths)
        model.generate(
            ids, attention_mask=mask, min_new_tokens=most, max_new_tokens=most, do_sample=False
        )
    torch.cuda.synchronize()
    return sum(outputs) / (time.perf_counter() - begin)


def main() -> int:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="write the results as JSON to this file")
    parser.add_argument("--sequences", type=int, default=256, help="sequences of the workload")
    parser.add_argument("--no-transformers", action="store_true", help="leave transformers out")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("There is no GPU here that torch can use, so nothing was measured.", file=sys.stderr)
        return 1
    card = measure_card()
    lines = [*small_kernels(card, 1), *small_kernels(card, 256), *small_kernels(card, 8192)]
    lines += [attention(card, [8192], 1), attention(card, [1024] * 256, 1)]
    lines += [attention(card, [8192], 8192)]
    model = random_model()
    lines += [decode_steps(card, model, 1, 1024), decode_steps(card, model, 256, 1024)]
    rates = rates_of(model, options.sequences)
    del model
    if not options.no_transformers:
        rates["transformers, batches of 32"] = transformers_rate(options.sequences)
    print(f"{card.name}: {card.bytes_per_second / 1e9:.0f} GB/s, "
          f"{card.flops_per_second / 1e12:.0f} TFLOP/s measured")  # fmt: skip
    print(f"{'':<62}{'us':>10}{'torch us':>10}{'floor us':>10}{'of floor':>10}")
    for line in lines:
        beside = "" if line.torch_microseconds is None else f"{line.torch_microseconds:.1f}"
        print(f"{line.name:<62}{line.microseconds:>10.1f}{beside:>10}"
              f"{line.floor_microseconds:>10.1f}{line.share_of_floor:>10.0%}")  # fmt: skip
    for name, rate in rates.items():
        print(f"{name}: {rate:.0f} output tokens/s, {options.sequences} sequences")
    if options.out:
        found = {"card": asdict(card), "lines": [asdict(line) for line in lines], "rates": rates}
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
