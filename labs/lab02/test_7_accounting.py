"""Task 7: bytes, operations and seconds."""

import pytest

from grader import expect
from nanovllm.model.accounting import (
    arithmetic_intensity,
    generation_flops,
    kv_bytes_per_token,
    step_bytes,
    step_flops,
    step_seconds,
    tokens_computed,
    tokens_in_budget,
)
from nanovllm.model.config import ModelConfig

# family, V, E, L, H, G, D, intermediate size, positions: as published
LLAMA2_70B = ModelConfig("llama", 32000, 8192, 80, 64, 8, 128, 28672, 4096)
LLAMA2_7B = ModelConfig("llama", 32000, 4096, 32, 32, 32, 128, 11008, 4096)
QWEN3_06B = ModelConfig("qwen3", 151936, 1024, 28, 16, 8, 128, 3072, 40960)
GPT2 = ModelConfig("gpt2", 50257, 768, 12, 12, 12, 64, 3072, 1024)
MODELS = {"Llama-2-70B": LLAMA2_70B, "Qwen3-0.6B": QWEN3_06B, "GPT-2": GPT2}


def _weights(config):
    """Entries of all matrices of the layers, counted one by one."""
    E, D = config.hidden_size, config.head_dim
    q_and_o, k_and_v = 2 * E * config.num_heads * D, 2 * E * config.num_kv_heads * D
    mlp = (2 if config.family == "gpt2" else 3) * E * config.intermediate_size
    return config.num_layers * (q_and_o + k_and_v + mlp)


def _flops(config, new, cached, rows=1):
    """2 for each multiply-add, the visible keys of each query counted one by one."""
    seen = sum(cached + t + 1 for t in range(new))
    scores = 2 * 2 * seen * config.num_heads * config.head_dim * config.num_layers
    head = 2 * rows * config.hidden_size * config.vocab_size
    return 2 * new * _weights(config) + scores + head


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


@pytest.mark.check(task=7, points=1, title="Tokens that fit in a budget")
def test_budget():
    for budget, expected in ((10 * 2**30, 32768), (327_679, 0), (327_680 * 3 - 1, 2)):
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


@pytest.mark.check(task=7, points=2, title="Tokens computed with and without a cache")
def test_tokens():
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


@pytest.mark.check(task=7, points=2, title="Operations of a step and of a generation")
def test_flops():
    for name, config in MODELS.items():
        for new, cached, rows in ((100, 0, 1), (1, 1000, 1), (16, 50, 16), (3, 7, 0)):
            expect(
                step_flops(config, new, cached, rows),
                _flops(config, new, cached, rows),
                call=f"step_flops({name}, new_tokens={new}, cached_tokens={cached}, rows={rows})",
                cause="2 * weights a token, 4 * L * H * D a visible pair, 2 * E * V a row.",
            )
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


@pytest.mark.check(task=7, points=2, title="Bytes moved, and operations for each")
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


@pytest.mark.check(task=7, points=1, title="The time that the hardware allows")
def test_seconds():
    for new, cached in ((1, 500), (2000, 0)):
        kv = 2 * 80 * 8 * 128 * 2
        move = (2 * (_weights(LLAMA2_70B) + 8192 * 32000) + (new + cached) * kv) / 2.0e12
        compute = _flops(LLAMA2_70B, new, cached) / 4.0e12
        expect(
            step_seconds(LLAMA2_70B, new, cached, 2.0e12, 4.0e12),
            max(move, compute),
            call=f"step_seconds(Llama-2-70B, {new}, {cached}, 2.0e12, 4.0e12)",
            cause="the longer of the two times: one token waits for memory, 2000 for the sums.",
        )
