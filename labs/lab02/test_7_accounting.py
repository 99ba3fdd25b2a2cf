"""Task 7: bytes, operations and seconds."""

from dataclasses import replace

import pytest

from grader import expect
from nanovllm.model.accounting import (
    activation_count,
    arithmetic_intensity,
    generation_flops,
    kv_bytes_per_token,
    matmul_parameters,
    step_bytes,
    step_flops,
    step_seconds,
    tokens_computed,
    tokens_in_budget,
    training_bytes,
    training_flops,
    weight_count,
)
from nanovllm.model.config import ModelConfig

# family, V, E, L, H, G, D, intermediate size, positions: as published
LLAMA2_70B = ModelConfig("llama", 32000, 8192, 80, 64, 8, 128, 28672, 4096)
LLAMA2_7B = ModelConfig("llama", 32000, 4096, 32, 32, 32, 128, 11008, 4096)
QWEN3_06B = ModelConfig("qwen3", 151936, 1024, 28, 16, 8, 128, 3072, 40960, tie_embeddings=True)
GPT2 = ModelConfig("gpt2", 50257, 768, 12, 12, 12, 64, 3072, 1024, tie_embeddings=True)
MODELS = {"Llama-2-70B": LLAMA2_70B, "Qwen3-0.6B": QWEN3_06B, "GPT-2": GPT2}


def _layer_weights(config):
    """Entries of all matrices of one layer, counted one by one."""
    E, D, inner = config.hidden_size, config.head_dim, config.intermediate_size
    shapes = [(config.num_heads * D, E), (E, config.num_heads * D)]
    shapes += 2 * [(config.num_kv_heads * D, E)]
    shapes += (2 if config.family == "gpt2" else 3) * [(inner, E)]
    return sum(rows * columns for rows, columns in shapes)


def _weights(config):
    return config.num_layers * _layer_weights(config)


def _flops(config, new, cached, rows=1):
    """2 for each multiply-add, the visible keys of each query counted one by one."""
    seen = sum(cached + t + 1 for t in range(new))
    scores = 2 * 2 * seen * config.num_heads * config.head_dim * config.num_layers
    head = 2 * rows * config.hidden_size * config.vocab_size
    return 2 * new * _weights(config) + scores + head


def _kept(config):
    """Numbers kept for the backward pass in one layer for one token, one by one."""
    kept = dict.fromkeys(("in", "normed", "between", "normed again"), config.hidden_size)
    kept |= dict.fromkeys(("q", "attended"), config.num_heads * config.head_dim)
    kept |= dict.fromkeys(("k", "v"), config.num_kv_heads * config.head_dim)
    inner = ("up", "gelu") if config.family == "gpt2" else ("gate", "up", "product")
    return sum((kept | dict.fromkeys(inner, config.intermediate_size)).values())


def _whole(call, *counts):
    expect.that(
        all(isinstance(count, int) for count in counts),
        "a count is an int",
        observed=list(counts),
        call=call,
        cause="/ gives a float, which is not exact for large numbers.",
    )


@pytest.mark.check(task=7, points=1, title="Weights of a model")
def test_weights():
    for name, config in MODELS.items():
        expect(
            matmul_parameters(config),
            _weights(config),
            call=f"matmul_parameters({name})",
            cause="q, k, v and o, and the MLP's matrices, in every layer; k and v have G heads.",
        )
    untied = replace(QWEN3_06B, tie_embeddings=False)
    for name, config, tables in (
        ("Llama-2-70B", LLAMA2_70B, 2 * 32000),
        ("Qwen3-0.6B", QWEN3_06B, 151936),
        ("Qwen3-0.6B, not tied", untied, 2 * 151936),
        ("GPT-2", GPT2, 50257 + 1024),
    ):
        expect(
            weight_count(config),
            _weights(config) + tables * config.hidden_size,
            call=f"weight_count({name})",
            cause="the embedding, the output matrix unless it is the embedding, and GPT-2's "
            "learned positions, beside the layers.",
        )
    counts = matmul_parameters(GPT2), weight_count(GPT2)
    _whole("matmul_parameters(GPT-2) and weight_count(GPT-2)", *counts)


@pytest.mark.check(task=7, points=2, title="Bytes of cache for one token")
def test_bytes_per_token():
    for name, config, size, expected in (
        ("Qwen3-0.6B", QWEN3_06B, 2, 112 * 1024),
        ("Llama-2-70B", LLAMA2_70B, 2, 320 * 1024),
        ("Llama-2-7B", LLAMA2_7B, 2, 512 * 1024),
        ("GPT-2", GPT2, 4, 72 * 1024),
    ):
        expect(
            kv_bytes_per_token(config, size),
            expected,
            call=f"kv_bytes_per_token({name}, dtype_bytes={size})",
            cause="2 (K and V) * layers * key/value heads * head dim * bytes of a number.",
        )
    _whole("kv_bytes_per_token(GPT-2)", kv_bytes_per_token(GPT2))


@pytest.mark.check(task=7, points=1, title="Tokens that fit in a budget")
def test_budget():
    for budget, expected in (
        (10 * 2**30, 32768),
        (327_679, 0),
        (327_680 * 3 - 1, 2),
        (327_680 * 10**15 - 1, 10**15 - 1),
    ):
        expect(
            tokens_in_budget(LLAMA2_70B, budget),
            expected,
            call=f"tokens_in_budget(Llama-2-70B, {budget})",
            cause="whole tokens only, each of 327680 bytes.",
        )
    expect(
        tokens_in_budget(QWEN3_06B, 10**9, dtype_bytes=1),
        17438,
        call="tokens_in_budget(Qwen3-0.6B, 10**9, dtype_bytes=1)",
    )
    _whole("tokens_in_budget(GPT-2, 10**9)", tokens_in_budget(GPT2, 10**9))


@pytest.mark.check(task=7, points=1, title="Tokens computed with and without a cache")
def test_tokens():
    counts = [tokens_computed(7, 3, cached) for cached in (False, True)]
    _whole("tokens_computed(prompt=7, generated=3, cached), without a cache and with one", *counts)
    for prompt, generated in ((1, 10), (7, 1), (100, 50)):
        lengths = [prompt + step for step in range(generated)]
        expect(
            tokens_computed(prompt, generated, cached=False),
            sum(lengths),
            call=f"tokens_computed(prompt={prompt}, generated={generated}, cached=False)",
            cause="each step runs the whole sequence so far, and its last row is the next token.",
        )
        expect(
            tokens_computed(prompt, generated, cached=True),
            lengths[-1],
            call=f"tokens_computed(prompt={prompt}, generated={generated}, cached=True)",
            cause="the prompt once, then one token a step; the last token is never fed back.",
        )


@pytest.mark.check(task=7, points=1, title="Operations of a step and of a generation")
def test_flops():
    for name, config in MODELS.items():
        for new, cached, rows in ((100, 0, 1), (1, 1000, 1), (16, 50, 16), (3, 7, 0)):
            expect(
                step_flops(config, new, cached, rows),
                _flops(config, new, cached, rows),
                call=f"step_flops({name}, new_tokens={new}, cached_tokens={cached}, rows={rows})",
                cause="2 * weights a token, 4 * L * H * D a visible pair, 2 * E * V a row.",
            )
    counts = [step_flops(GPT2, 2, 3), generation_flops(GPT2, 2, 3, cached=False)]
    _whole("step_flops(GPT-2, 2, 3) and generation_flops(GPT-2, 2, 3, cached=False)", *counts)
    without = sum(_flops(GPT2, 20 + step, 0) for step in range(9))
    expect(
        generation_flops(GPT2, 20, 9, cached=False),
        without,
        call="generation_flops(GPT-2, prompt=20, generated=9, cached=False)",
        cause="9 steps over 20, 21, ... 28 tokens.",
    )
    expect(
        generation_flops(GPT2, 20, 9, cached=True),
        _flops(GPT2, 20, 0) + sum(_flops(GPT2, 1, 20 + step) for step in range(8)),
        call="generation_flops(GPT-2, prompt=20, generated=9, cached=True)",
        cause="one step over the prompt, then 8 steps of one token.",
    )


@pytest.mark.check(task=7, points=1, title="Bytes moved, and operations for each")
def test_bytes_and_intensity():
    for name, config in MODELS.items():
        kv = 2 * config.num_layers * config.num_kv_heads * config.head_dim
        for new, cached, size in ((512, 100, 4), (1, 0, 2), (1, 2000, 2)):
            weights = _weights(config) + config.hidden_size * config.vocab_size
            expected = size * (weights + (new + cached) * kv)
            arguments = f"({name}, new_tokens={new}, cached_tokens={cached}, dtype_bytes={size})"
            expect(
                step_bytes(config, new, cached, size),
                expected,
                call=f"step_bytes{arguments}",
                cause="all weights once, the cached tokens read, the new ones written.",
            )
            expect(
                arithmetic_intensity(config, new, cached, size),
                _flops(config, new, cached) / expected,
                call=f"arithmetic_intensity{arguments}",
                cause="operations divided by bytes, with one row of logits.",
            )
    _whole("step_bytes(GPT-2, 2, 3)", step_bytes(GPT2, 2, 3))


@pytest.mark.check(task=7, points=1, title="The time that the hardware allows")
def test_seconds():
    for new, cached, size in ((1, 500, 2), (2000, 0, 2), (1, 30, 1)):
        kv = 2 * 80 * 8 * 128 * size
        move = (size * (_weights(LLAMA2_70B) + 8192 * 32000) + (new + cached) * kv) / 2.0e12
        compute = _flops(LLAMA2_70B, new, cached) / 4.0e12
        expect(
            step_seconds(LLAMA2_70B, new, cached, 2.0e12, 4.0e12, size),
            max(move, compute),
            call=f"step_seconds(Llama-2-70B, {new}, {cached}, 2.0e12, 4.0e12, {size})",
            cause="the longer of the two times: one token waits for memory, 2000 for the sums.",
        )


@pytest.mark.check(task=7, points=1, title="Memory of a training step")
def test_training_memory():
    for name, config in MODELS.items():
        layer, layers = _kept(config), config.num_layers
        for checkpointed in (False, True):
            kept = layers * config.hidden_size + layer if checkpointed else layers * layer
            expect(
                activation_count(config, checkpointed),
                kept,
                call=f"activation_count({name}, checkpointed={checkpointed})",
                cause="four times E, q and attention's result, k and v, and the MLP's vectors, "
                "in every layer; with checkpointing the inputs of all layers and one whole layer.",
            )
            found = training_bytes(config, 1000, checkpointed)
            tables = {"Llama-2-70B": 64000, "Qwen3-0.6B": 151936, "GPT-2": 51281}[name]
            weights = _weights(config) + tables * config.hidden_size
            expect(
                [found.weights, found.gradients, found.optimizer, found.activations, found.total],
                [2 * weights, 2 * weights, 12 * weights, 2000 * kept, 16 * weights + 2000 * kept],
                call=f"training_bytes({name}, tokens=1000, checkpointed={checkpointed}): weights, "
                "gradients, optimizer, activations, total",
                cause="2, 2 and 12 bytes for each weight, 2 for each activation of each token.",
            )
    counts = activation_count(GPT2), *vars(training_bytes(GPT2, 2)).values()
    _whole("activation_count(GPT-2), and the parts of training_bytes(GPT-2, 2)", *counts)


@pytest.mark.check(task=7, points=1, title="Operations of a training step")
def test_training_flops():
    for name, config in MODELS.items():
        for tokens, checkpointed in ((1, False), (50, False), (50, True)):
            again = _flops(config, tokens, 0, rows=0) if checkpointed else 0
            expect(
                training_flops(config, tokens, checkpointed),
                3 * _flops(config, tokens, 0, rows=tokens) + again,
                call=f"training_flops({name}, tokens={tokens}, checkpointed={checkpointed})",
                cause="forward with logits for every row, backward twice as much; checkpointing "
                "repeats the layers' forward pass.",
            )
    _whole("training_flops(GPT-2, 2, checkpointed=True)", training_flops(GPT2, 2, True))
