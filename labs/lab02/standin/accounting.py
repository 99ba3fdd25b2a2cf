"""The sums of lab 02 that labs 03 and 10 start from, counted on the model itself."""

from functools import cache

import torch

from nanovllm.model.config import ModelConfig
from nanovllm.model.transformer import Transformer


@cache
def _matrices(config: ModelConfig) -> tuple[int, int]:
    """Numbers in the matrices of all layers, and in the output matrix."""
    with torch.device("meta"):
        model = Transformer(config)
    in_layers = sum(w.numel() for w in model.layers.parameters() if w.ndim > 1)
    return in_layers, model.embed_tokens.weight.numel()


def step_flops(config: ModelConfig, new_tokens: int, cached_tokens: int = 0, rows: int = 1) -> int:
    """Operations of one step."""
    layers, head = _matrices(config)
    seen = sum(range(cached_tokens + 1, cached_tokens + new_tokens + 1))
    width = config.num_layers * config.num_heads * config.head_dim
    return 2 * (layers * new_tokens + head * rows) + 4 * width * seen


def step_bytes(
    config: ModelConfig, new_tokens: int, cached_tokens: int = 0, dtype_bytes: int = 2
) -> int:
    """Bytes moved by one step."""
    kept = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    return dtype_bytes * (sum(_matrices(config)) + kept * (cached_tokens + new_tokens))


def matmul_parameters(config: ModelConfig) -> int:
    """Weights of the linears of all layers."""
    return _matrices(config)[0]


def kv_bytes_per_token(config: ModelConfig, dtype_bytes: int = 2) -> int:
    """Bytes of K and V of a token."""
    return step_bytes(config, 1, 1, dtype_bytes) - step_bytes(config, 1, 0, dtype_bytes)
