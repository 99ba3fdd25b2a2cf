"""`nanovllm describe`: what a model will need here, computed from its configuration alone."""

from typing import TYPE_CHECKING, Annotated

import typer

from nanovllm.cli.describe_cards import table_of_cards, told
from nanovllm.cli.engine import select_code
from nanovllm.cli.errors import Refused
from nanovllm.cli.options import KV_CODES, Code, Model

if TYPE_CHECKING:
    from nanovllm.model.config import ModelConfig

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
GB = 1e9


def describe(
    model: Model = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "bfloat16",
    context: Annotated[int, typer.Option(min=1, help="Tokens of a request, for the table.")] = 1024,
    cache_gb: Annotated[float, typer.Option(min=0.001, help="Memory for the KV cache.")] = 4.0,
    disk_gb_s: Annotated[float, typer.Option(min=0.001, help="What your disk reads.")] = 0.5,
    memory_gb_s: Annotated[
        float | None,
        typer.Option(min=0.0, help="Memory bandwidth. (default and 0: measured)"),
    ] = None,
    gflops: Annotated[
        float | None,
        typer.Option(min=0.0, help="Arithmetic rate. (default and 0: measured)"),
    ] = None,
    kv_cache_dtype: Annotated[str, typer.Option(help=KV_CODES)] = "auto",
    cards: Annotated[
        int, typer.Option(min=1, help="Lab 10: over how many cards is it best cut?")
    ] = 1,
    card: Annotated[str, typer.Option(help="h100, a100, l4 or core.")] = "h100",
    link: Annotated[
        str, typer.Option(help="Between cards: nvlink, pcie5, pcie4, 100gbe or gloo.")
    ] = "nvlink",
    code: Code = None,
) -> None:
    """What a model needs and at best gives here: memory, load time, time a token. Loads nothing.

    --model is a folder, a hub name, or a known shape (qwen3-0.6b, mid, tiny), which needs no file:
    `nanovllm bench latency --model qwen3-0.6b` runs that shape with random weights.
    """
    if dtype not in BYTES:
        raise Refused(f"--dtype {dtype} is not known: use {', '.join(BYTES)}.")
    select_code(code)
    import torch
    from rich.console import Console
    from rich.table import Table

    from nanovllm.bench.limits import bytes_per_second, flops_per_second
    from nanovllm.llm.engine_options import EngineOptions
    from nanovllm.llm.kv_codes import token_bytes

    config = shape_of(model)
    rates = (
        memory_gb_s or bytes_per_second() / GB,
        gflops or flops_per_second(getattr(torch, dtype)) / GB,
    )
    name = model or "the bundled model"
    table = Table(title=f"{name} in {dtype}, {rates[0]:.3g} GB/s, {rates[1]:.3g} GFLOP/s")
    table.add_column("what")
    table.add_column("expect", justify="right")
    table.add_column("why", style="dim")
    width = BYTES[dtype]
    token = token_bytes(config, width, EngineOptions(kv_cache_dtype=kv_cache_dtype))
    for row in rows(config, width, context, cache_gb * GB, disk_gb_s * GB, rates, token):
        table.add_row(*row)
    Console().print(table)
    if cards > 1:
        Console().print(table_of_cards(config, width, context, cards, card, link))


def shape_of(model: str | None) -> "ModelConfig":
    """The configuration of a known shape, a folder, a hub name, or the bundled model."""
    from nanovllm.bench.models import CONTEXT, SIZES
    from nanovllm.llm.read_options import BUNDLED
    from nanovllm.model.config import ModelConfig
    from nanovllm.model.loader import load_config

    if model not in SIZES:
        return load_config(model or BUNDLED)
    size = SIZES[model]
    return ModelConfig(
        "qwen3", size["vocab_size"], size["hidden_size"], size["num_hidden_layers"],
        size["num_attention_heads"], size["num_key_value_heads"], size["head_dim"],
        size["intermediate_size"], CONTEXT, tie_embeddings=True,
    )  # fmt: skip


def parameters(config: "ModelConfig") -> int:
    """Weights of the model; norms and biases, under 0.1 %, are left out."""
    from nanovllm.model.accounting import matmul_parameters
    from nanovllm.model.experts import extra_weights

    tables = 1 if config.tie_embeddings else 2
    dense = matmul_parameters(config) + tables * config.vocab_size * config.hidden_size
    return dense + extra_weights(config)


def rows(
    config: "ModelConfig",
    width: int,
    context: int,
    cache: float,
    disk: float,
    rates: tuple[float, float],
    token: int | None = None,
) -> list[tuple[str, str, str]]:
    """What, how much, why, for each line of the table; sizes in bytes, rates in GB/s, GFLOP/s.

    token: bytes of K and V a token, where they are not in the model's dtype.
    """
    from nanovllm.model.accounting import kv_bytes_per_token, step_seconds

    bandwidth, arithmetic = rates[0] * GB, rates[1] * GB
    weights = parameters(config) * width
    plain = kv_bytes_per_token(config, width)
    token = token or plain
    fits = int(cache) // token
    codes = "2 x L x G x D x bytes" if token == plain else f"{plain / token:.3g} times less"

    def least(new: int, cached: int, several: int = 1) -> float:
        """Seconds of a step of `several` equal requests, which share the reading of the weights."""
        stored = several * cached * token // plain  # as many tokens of the dtype
        read = step_seconds(config, several * new, stored, bandwidth, 1e30, width)
        return max(read, several * step_seconds(config, new, cached, 1e30, arithmetic, width))

    one, many, prompt = least(1, context), least(1, context, 32), least(context, 0)
    return [
        ("parameters", f"{parameters(config) / 1e6:,.0f} M", f"L={config.num_layers}, "
         f"E={config.hidden_size}, H={config.num_heads}, G={config.num_kv_heads}, "
         f"D={config.head_dim}, V={config.vocab_size}"),
        ("weights", f"{weights / GB:.2f} GB", f"{width} bytes a parameter"),
        ("load time", told(weights / disk), f"a disk that reads {disk / GB:g} GB/s"),
        ("KV cache a token", f"{token / 1024:.0f} KiB", codes),
        (f"a request of {context} tokens", f"{context * token / 1e6:.0f} MB", "its KV cache"),
        (f"tokens in {cache / GB:g} GB", f"{fits:,}", f"{fits // context} such requests at once"),
        ("one token, alone", told(one), "at least: weights and cache are read once"),
        ("tokens/s, alone", f"{1 / one:,.3g}", "at most"),
        ("tokens/s, 32 at once", f"{32 / many:,.3g}", "at most: the weights are shared"),
        (f"first token after {context}", told(prompt), "at least: arithmetic"),
    ]  # fmt: skip
