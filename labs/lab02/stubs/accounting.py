"""What a model costs: bytes of cache, floating-point operations, bytes moved, seconds."""

from nanovllm.model.config import ModelConfig


def matmul_parameters(config: ModelConfig) -> int:
    """Weights that every token is multiplied by: projections and MLP of all layers (given).

    Norms and biases are left out (under 0.1 %), and so is the output matrix, which only the
    rows that need logits are multiplied by.

    >>> matmul_parameters(ModelConfig("llama", 9, 4, 1, 2, 1, 2, 6, 16))
    120
    """
    hidden, dim = config.hidden_size, config.head_dim
    attention = hidden * dim * (2 * config.num_heads + 2 * config.num_kv_heads)
    matrices = 2 if config.family == "gpt2" else 3
    return config.num_layers * (attention + matrices * hidden * config.intermediate_size)


def kv_bytes_per_token(config: ModelConfig, dtype_bytes: int = 2) -> int:
    """Bytes of cache that one token takes: its K and its V in every layer.

    Llama-2-70B has 80 layers and 8 key/value heads of 128, in 2 bytes:

    >>> kv_bytes_per_token(ModelConfig("llama", 32000, 8192, 80, 64, 8, 128, 28672, 4096)) // 1024
    320
    """
    raise NotImplementedError("lab02 task 7: kv_bytes_per_token")


def tokens_in_budget(config: ModelConfig, budget_bytes: int, dtype_bytes: int = 2) -> int:
    """How many whole tokens of cache fit in so many bytes.

    >>> llama = ModelConfig("llama", 32000, 8192, 80, 64, 8, 128, 28672, 4096)
    >>> tokens_in_budget(llama, 10 * 2**30)
    32768
    """
    raise NotImplementedError("lab02 task 7: tokens_in_budget")


def tokens_computed(prompt: int, generated: int, cached: bool) -> int:
    """Tokens that go through the model to generate so many after a prompt.

    Each generated token costs one step, whose last row gives it; the last generated token is
    never fed back. Without a cache each step runs the whole sequence so far. `generated` is at
    least 1.

    >>> tokens_computed(prompt=1, generated=10, cached=False), tokens_computed(1, 10, cached=True)
    (55, 10)
    """
    raise NotImplementedError("lab02 task 7: tokens_computed")


def step_flops(config: ModelConfig, new_tokens: int, cached_tokens: int = 0, rows: int = 1) -> int:
    """Floating-point operations of one step over `new_tokens`, logits for `rows` of them.

    A multiply and an add are two. Each new token: 2 * `matmul_parameters`. Each pair of a query
    and a key it may see (causal; no sliding window): 4 * H * D a layer, half for q k^T and half
    for the weighted sum of v. Each row of logits: 2 * E * V. Norms, RoPE, softmax are left out.

    >>> config = ModelConfig("llama", 9, 4, 1, 2, 1, 2, 6, 16)
    >>> step_flops(config, new_tokens=3), step_flops(config, new_tokens=1, cached_tokens=2)
    (888, 360)
    """
    raise NotImplementedError("lab02 task 7: step_flops")


def generation_flops(config: ModelConfig, prompt: int, generated: int, cached: bool) -> int:
    """Floating-point operations of a whole generation: the sum over its `generated` steps.

    >>> config = ModelConfig("llama", 9, 4, 1, 2, 1, 2, 6, 16)
    >>> generation_flops(config, 2, 3, cached=False), generation_flops(config, 2, 3, cached=True)
    (2680, 1336)
    """
    raise NotImplementedError("lab02 task 7: generation_flops")


def step_bytes(
    config: ModelConfig, new_tokens: int, cached_tokens: int = 0, dtype_bytes: int = 2
) -> int:
    """Bytes that one step must move: all weights once, the cache read, the new K and V written.

    The weights are `matmul_parameters` and the output matrix (E * V), however many tokens share
    them. Activations stay on the chip and are left out.

    >>> config = ModelConfig("llama", 9, 4, 1, 2, 1, 2, 6, 16)
    >>> step_bytes(config, new_tokens=1, cached_tokens=2)
    336
    """
    raise NotImplementedError("lab02 task 7: step_bytes")


def arithmetic_intensity(
    config: ModelConfig, new_tokens: int, cached_tokens: int = 0, dtype_bytes: int = 2
) -> float:
    """Floating-point operations for each byte moved in one step (one row of logits).

    >>> config = ModelConfig("llama", 9, 4, 1, 2, 1, 2, 6, 16)
    >>> round(arithmetic_intensity(config, new_tokens=1, cached_tokens=2), 3)
    1.071
    """
    raise NotImplementedError("lab02 task 7: arithmetic_intensity")


def step_seconds(
    config: ModelConfig,
    new_tokens: int,
    cached_tokens: int,
    bytes_per_second: float,
    flops_per_second: float,
    dtype_bytes: int = 2,
) -> float:
    """The least time a step can take: moving its bytes or doing its sums, whichever is longer.

    >>> config = ModelConfig("llama", 9, 4, 1, 2, 1, 2, 6, 16)
    >>> step_seconds(config, 1, 2, bytes_per_second=336.0, flops_per_second=3600.0)
    1.0
    """
    raise NotImplementedError("lab02 task 7: step_seconds")
