"""What a model costs: bytes of weights and cache, floating-point operations, bytes moved, seconds.

Norms and biases, under 0.1 % of the weights and of the work, are left out everywhere. Counts are
whole numbers, exact and of type int.
"""

from dataclasses import dataclass

from nanovllm.model.config import ModelConfig


@dataclass(frozen=True)
class TrainingBytes:
    """The memory of one training step, part by part (given)."""

    weights: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations


def matmul_parameters(config: ModelConfig) -> int:
    """Weights that every token is multiplied by: the linears of all layers.

    Those of attention and of the MLP, which has two matrices in GPT-2 and three elsewhere. The
    output matrix is not among them: only the rows that need logits are multiplied by it.

    >>> matmul_parameters(ModelConfig("llama", 9, 4, 1, 2, 1, 2, 6, 16))
    120
    """
    ### BEGIN SOLUTION
    hidden, dim = config.hidden_size, config.head_dim
    q_and_o = 2 * hidden * config.num_heads * dim
    k_and_v = 2 * hidden * config.num_kv_heads * dim
    matrices = 2 if config.family == "gpt2" else 3
    return config.num_layers * (q_and_o + k_and_v + matrices * hidden * config.intermediate_size)
    ### END SOLUTION


def weight_count(config: ModelConfig) -> int:
    """All weights of the model: `matmul_parameters`, the embedding, and up to two more.

    These are the output matrix, where it is not tied to the embedding, and GPT-2's learned
    positions; both have E columns. Experts (`config.experts`) are not counted.

    >>> weight_count(ModelConfig("llama", 9, 4, 1, 2, 1, 2, 6, 16))
    192
    >>> gpt2 = ModelConfig("gpt2", 50257, 768, 12, 12, 12, 64, 3072, 1024, tie_embeddings=True)
    >>> weight_count(gpt2)
    124318464
    """
    ### BEGIN SOLUTION
    rows = config.vocab_size if config.tie_embeddings else 2 * config.vocab_size
    if config.family == "gpt2":
        rows += config.max_position
    return matmul_parameters(config) + rows * config.hidden_size
    ### END SOLUTION


def kv_bytes_per_token(config: ModelConfig, dtype_bytes: int = 2) -> int:
    """Bytes of cache that one token takes: its K and its V in every layer.

    Llama-2-70B has 80 layers and 8 key/value heads of 128, in 2 bytes:

    >>> kv_bytes_per_token(ModelConfig("llama", 32000, 8192, 80, 64, 8, 128, 28672, 4096)) // 1024
    320
    """
    ### BEGIN SOLUTION
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * dtype_bytes
    ### END SOLUTION


def tokens_in_budget(config: ModelConfig, budget_bytes: int, dtype_bytes: int = 2) -> int:
    """How many whole tokens of cache fit in so many bytes.

    >>> llama = ModelConfig("llama", 32000, 8192, 80, 64, 8, 128, 28672, 4096)
    >>> tokens_in_budget(llama, 10 * 2**30)
    32768
    """
    ### BEGIN SOLUTION
    return budget_bytes // kv_bytes_per_token(config, dtype_bytes)
    ### END SOLUTION


def tokens_computed(prompt: int, generated: int, cached: bool) -> int:
    """Tokens that go through the model to generate so many after a prompt.

    Each generated token costs one step, whose last row gives it; the last generated token is
    never fed back. Without a cache each step runs the whole sequence so far. Both numbers are
    at least 1.

    >>> tokens_computed(prompt=1, generated=10, cached=False), tokens_computed(1, 10, cached=True)
    (55, 10)
    """
    ### BEGIN SOLUTION
    if cached:
        return prompt + generated - 1
    return generated * prompt + generated * (generated - 1) // 2
    ### END SOLUTION


def step_flops(config: ModelConfig, new_tokens: int, cached_tokens: int = 0, rows: int = 1) -> int:
    """Floating-point operations of one step over `new_tokens`, logits for `rows` of them.

    A multiply and an add are two. Each new token: 2 for each of `matmul_parameters`. Each pair of a
    query and a key it may see (causal, itself included; windows are not counted): 4 * H * D a
    layer. Each row of logits: 2 * E * V. RoPE and softmax are left out.

    >>> config = ModelConfig("llama", 9, 4, 1, 2, 1, 2, 6, 16)
    >>> step_flops(config, new_tokens=3), step_flops(config, new_tokens=1, cached_tokens=2)
    (888, 360)
    """
    ### BEGIN SOLUTION
    pairs = new_tokens * cached_tokens + new_tokens * (new_tokens + 1) // 2
    layers = new_tokens * 2 * matmul_parameters(config)
    scores = pairs * 4 * config.num_layers * config.num_heads * config.head_dim
    return layers + scores + rows * 2 * config.hidden_size * config.vocab_size
    ### END SOLUTION


def generation_flops(config: ModelConfig, prompt: int, generated: int, cached: bool) -> int:
    """Floating-point operations of a whole generation: the sum over its `generated` steps.

    >>> config = ModelConfig("llama", 9, 4, 1, 2, 1, 2, 6, 16)
    >>> generation_flops(config, 2, 3, cached=False), generation_flops(config, 2, 3, cached=True)
    (2680, 1336)
    """
    ### BEGIN SOLUTION
    if not cached:
        return sum(step_flops(config, prompt + step) for step in range(generated))
    decode = sum(step_flops(config, 1, prompt + step) for step in range(generated - 1))
    return step_flops(config, prompt) + decode
    ### END SOLUTION


def step_bytes(
    config: ModelConfig, new_tokens: int, cached_tokens: int = 0, dtype_bytes: int = 2
) -> int:
    """Bytes that one step must move: all weights once, the cache read, the new K and V written.

    The weights are `matmul_parameters` and the output matrix, however many tokens share them.
    Activations stay on the chip and are left out.

    >>> config = ModelConfig("llama", 9, 4, 1, 2, 1, 2, 6, 16)
    >>> step_bytes(config, new_tokens=1, cached_tokens=2)
    336
    """
    ### BEGIN SOLUTION
    weights = (matmul_parameters(config) + config.hidden_size * config.vocab_size) * dtype_bytes
    cache = (cached_tokens + new_tokens) * kv_bytes_per_token(config, dtype_bytes)
    return weights + cache
    ### END SOLUTION


def arithmetic_intensity(
    config: ModelConfig, new_tokens: int, cached_tokens: int = 0, dtype_bytes: int = 2
) -> float:
    """Floating-point operations for each byte moved in one step (one row of logits).

    >>> config = ModelConfig("llama", 9, 4, 1, 2, 1, 2, 6, 16)
    >>> round(arithmetic_intensity(config, new_tokens=1, cached_tokens=2), 3)
    1.071
    """
    ### BEGIN SOLUTION
    flops = step_flops(config, new_tokens, cached_tokens)
    return flops / step_bytes(config, new_tokens, cached_tokens, dtype_bytes)
    ### END SOLUTION


def step_seconds(
    config: ModelConfig,
    new_tokens: int,
    cached_tokens: int,
    bytes_per_second: float,
    flops_per_second: float,
    dtype_bytes: int = 2,
) -> float:
    """The larger of the time to move the bytes and the time to compute (one row of logits).

    >>> config = ModelConfig("llama", 9, 4, 1, 2, 1, 2, 6, 16)
    >>> step_seconds(config, 1, 2, bytes_per_second=336.0, flops_per_second=3600.0)
    1.0
    >>> step_seconds(config, 1, 2, bytes_per_second=3360.0, flops_per_second=720.0)
    0.5
    """
    ### BEGIN SOLUTION
    move = step_bytes(config, new_tokens, cached_tokens, dtype_bytes) / bytes_per_second
    compute = step_flops(config, new_tokens, cached_tokens) / flops_per_second
    return max(move, compute)
    ### END SOLUTION


def activation_count(config: ModelConfig, checkpointed: bool = False) -> int:
    """Numbers that the forward pass of training keeps for each token until its backward pass.

    A layer keeps its input, the stream between its sublayers, and both after their norm (E each);
    q, k and v; what attention gives [H, D]; and in the MLP gate, up and their product (I each), or
    in GPT-2 up and its gelu. Attention's scores are not kept. With checkpointing every layer keeps
    its input alone, and one layer at a time has all of the above.

    >>> config = ModelConfig("llama", 9, 4, 3, 2, 1, 2, 6, 16)
    >>> activation_count(config), activation_count(config, checkpointed=True)
    (138, 58)
    """
    ### BEGIN SOLUTION
    stream = 4 * config.hidden_size
    heads = 2 * config.head_dim * (config.num_heads + config.num_kv_heads)
    inner = (2 if config.family == "gpt2" else 3) * config.intermediate_size
    layer = stream + heads + inner
    if checkpointed:
        return config.num_layers * config.hidden_size + layer
    return config.num_layers * layer
    ### END SOLUTION


def training_bytes(config: ModelConfig, tokens: int, checkpointed: bool = False) -> TrainingBytes:
    """What a training step over so many tokens holds, with Adam in mixed precision.

    For each of `weight_count`: 2 bytes for the weight, 2 for its gradient, and 12 for the optimizer
    (a float32 copy of the weight and two float32 moments). Each activation takes 2 bytes.
    Source: Rajbhandari et al. 2020 (ZeRO), section 3.1.

    >>> training_bytes(ModelConfig("llama", 9, 4, 3, 2, 1, 2, 6, 16), tokens=10)
    TrainingBytes(weights=864, gradients=864, optimizer=5184, activations=2760)
    """
    ### BEGIN SOLUTION
    weights = weight_count(config)
    activations = tokens * activation_count(config, checkpointed)
    return TrainingBytes(2 * weights, 2 * weights, 12 * weights, 2 * activations)
    ### END SOLUTION


def training_flops(config: ModelConfig, tokens: int, checkpointed: bool = False) -> int:
    """Floating-point operations of a training step over one sequence of so many tokens.

    The forward pass needs logits for every row. The backward pass costs twice the forward pass.
    With checkpointing the layers, but not the logits, are computed forward a second time.

    >>> config = ModelConfig("llama", 9, 4, 1, 2, 1, 2, 6, 16)
    >>> training_flops(config, tokens=3), training_flops(config, 3, checkpointed=True)
    (3096, 3912)
    """
    ### BEGIN SOLUTION
    flops = 3 * step_flops(config, tokens, rows=tokens)
    if checkpointed:
        flops += step_flops(config, tokens, rows=0)
    return flops
    ### END SOLUTION
