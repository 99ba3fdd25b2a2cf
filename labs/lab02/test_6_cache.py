"""Task 6: the contiguous KV cache."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import transformers

from grader import expect
from nanovllm.model.cache import CacheFullError, ContiguousCache, forward_cached
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import load_model

TARGET = Path(__file__).resolve().parents[2] / "models" / "target"
CONFIG = ModelConfig("llama", 61, 32, 2, 4, 2, 6, 56, 64)


def _qkv(generator, tokens):
    """Different q, k, v for each of the two layers."""
    return [
        [torch.randn(tokens, heads, 6, generator=generator) for heads in (4, 2, 2)] for _ in "ab"
    ]


def _oracle(q, k, v, window=None):
    """All tokens at once, causal, by torch's own attention."""
    tokens = len(q)
    mask = torch.ones(tokens, tokens).tril().bool()
    if window is not None:
        mask &= ~torch.ones(tokens, tokens).tril(-window).bool()
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, enable_gqa=True
    ).transpose(0, 1)


def _run(cache, layers, chunks):
    """What the cache answers for each layer, the tokens arriving in such chunks."""
    answers, start = [[] for _ in layers], 0
    for size in chunks:
        for layer, qkv in enumerate(layers):
            q, k, v = (x[start : start + size] for x in qkv)
            answers[layer].append(cache.attend(layer, q, k, v))
        cache.advance(size)
        start += size
    return [torch.cat(parts) for parts in answers]


@pytest.mark.check(task=6, points=3, title="A token is written, then attends")
def test_one_token_at_a_time(generator):
    layers = _qkv(generator, 6)
    cache = ContiguousCache(CONFIG, capacity=9)
    expect(
        _run(cache, layers, [1] * 6),
        [_oracle(*qkv) for qkv in layers],
        call="cache.attend(layer, q, k, v) for 6 tokens, one at a time, 2 layers",
        cause="write the new k and v first, then attend over the stored tokens and the new one.",
    )
    expect(cache.length, 6, call="cache.length after 6 steps of one token")


@pytest.mark.check(task=6, points=3, title="Chunks of any length continue where the last ended")
def test_chunks(generator):
    layers = _qkv(generator, 11)
    for chunks in ([4, 3, 1, 2, 1], [10, 1], [1, 10], [11]):
        expect(
            _run(ContiguousCache(CONFIG, capacity=11), layers, chunks),
            [_oracle(*qkv) for qkv in layers],
            call=f"cache.attend(layer, q, k, v), 11 tokens in chunks of {chunks}",
            cause="a chunk is written behind the stored tokens and sees them all.",
        )


@pytest.mark.check(task=6, points=2, title="The layer's sliding window holds in the cache")
def test_window(generator):
    layers = _qkv(generator, 9)
    cache = ContiguousCache(replace(CONFIG, windows=(3, None)), capacity=9)
    expect(
        _run(cache, layers, [5, 1, 3]),
        [_oracle(*layers[0], window=3), _oracle(*layers[1])],
        call="cache.attend, layer 0 with a window of 3 tokens, layer 1 without",
        cause="ask self.config.window(layer) for each layer.",
    )


@pytest.mark.check(task=6, points=2, title="The last place can be used, and no more")
def test_capacity(generator):
    layers = _qkv(generator, 6)
    cache = ContiguousCache(CONFIG, capacity=5)
    exact = [[x[:5] for x in qkv] for qkv in layers]
    expect(
        _run(cache, exact, [4, 1]),
        [_oracle(*qkv) for qkv in exact],
        call="5 tokens through a cache of capacity 5",
        cause="the cache is full only when more than `capacity` tokens would be stored.",
    )
    cache.truncate(4)
    before = cache.k.clone()
    expect.raises(
        CacheFullError,
        lambda: cache.attend(0, *(x[:2] for x in layers[0])),
        call="cache.attend with 2 tokens, 4 of 5 stored",
        cause="writing behind the end must be refused, not cut short.",
    )
    expect(cache.k, before, call="cache.k after the refused step", cause="check first, then write.")
    expect.raises(CacheFullError, lambda: cache.advance(2), call="cache.advance(2), 4 of 5 stored")
    expect(cache.length, 4, call="cache.length after the refused steps")


@pytest.mark.check(task=6, points=2, title="Memory is reserved once")
def test_in_place(generator):
    layers = _qkv(generator, 7)
    cache = ContiguousCache(CONFIG, capacity=8)
    before = (cache.k.data_ptr(), cache.v.data_ptr(), list(cache.k.shape), cache.nbytes)
    _run(cache, layers, [3, 1, 1, 1, 1])
    after = (cache.k.data_ptr(), cache.v.data_ptr(), list(cache.k.shape), cache.nbytes)
    expect.that(
        before == after,
        "cache.k and cache.v stay the same tensors",
        observed=[list(cache.k.shape), cache.nbytes],
        call="7 tokens through a cache of capacity 8",
        cause="growing by concatenation copies the whole cache at every token.",
    )
    stored = torch.stack([qkv[1] for qkv in layers])
    expect(
        cache.k[:, :7],
        stored,
        call="cache.k[:, :7] after 7 tokens",
        cause="token s of a layer is stored at cache.k[layer, s].",
    )


@pytest.mark.check(task=6, points=2, title="Truncated tokens are forgotten")
def test_truncate(generator):
    layers, wrong = _qkv(generator, 8), _qkv(generator, 4)
    cache = ContiguousCache(CONFIG, capacity=8)
    cache.advance(0)
    cache.truncate(0)
    kept = _run(cache, [[x[:3] for x in qkv] for qkv in layers], [3])
    _run(cache, wrong, [4])
    cache.truncate(3)
    expect(cache.length, 3, call="cache.truncate(3); cache.length")
    rest = _run(cache, [[x[3:] for x in qkv] for qkv in layers], [2, 3])
    expect(
        [torch.cat(parts) for parts in zip(kept, rest, strict=True)],
        [_oracle(*qkv) for qkv in layers],
        call="3 tokens, 4 wrong ones, cache.truncate(3), then 5 tokens",
        cause="the first 3 tokens stay, the next step overwrites what follows.",
    )
    for length in (9, -1):
        expect.raises(
            ValueError,
            lambda length=length: cache.truncate(length),
            call=f"cache.truncate({length}) with 8 tokens stored",
            cause="tokens that are not stored cannot be kept.",
        )


class Counter:
    """Stands in for a model: counts rows and keeps the positions it is called with."""

    def __init__(self):
        self.positions = []

    def __call__(self, token_ids, positions, attend):
        self.positions += positions.tolist()
        row = torch.zeros(len(token_ids), 4, 6)
        for layer in range(2):
            attend(layer, row, row[:, :2], row[:, :2])
        return torch.zeros(len(token_ids), 32)


@pytest.mark.check(task=6, points=2, title="n tokens are computed, not n(n+1)/2")
def test_tokens_computed(generator):
    ids = torch.randint(0, 61, (12,), generator=generator)
    model, cache = Counter(), ContiguousCache(CONFIG, capacity=12)
    lengths = []
    for chunk in ids.split([5, 1, 1, 1, 1, 1, 1, 1]):
        hidden = forward_cached(model, cache, chunk)
        expect(list(hidden.shape), [len(chunk), 32], call="forward_cached(model, cache, ids).shape")
        lengths.append(cache.length)
    expect(
        lengths,
        list(range(5, 13)),
        call="cache.length after each step: a prompt of 5, then 7 single tokens",
        cause="advance once a step, by the tokens of the step.",
    )
    expect(
        model.positions,
        list(range(12)),
        call="positions handed to the model: a prompt of 5, then 7 single tokens",
        cause="the positions go on at cache.length, and each token is computed once.",
    )


@pytest.mark.check(task=6, points=2, title="The bundled model with a cache equals transformers")
def test_bundled(generator):
    model = load_model(TARGET)
    ids = torch.randint(0, model.config.vocab_size, (24,), generator=generator)
    cache = ContiguousCache(model.config, capacity=24)
    chunks = ids.split([9, 1, 1, 6, 1, 1, 1, 1, 1, 1, 1])
    hidden = torch.cat([forward_cached(model, cache, chunk) for chunk in chunks])
    theirs = transformers.AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)
    with torch.no_grad():
        expected = theirs(ids[None]).logits[0]
    expect(
        torch.nn.functional.linear(hidden, model.embed_tokens.weight),
        expected,
        call="logits of models/target for 24 tokens, in chunks of 9, 1, 1, 6 and then single ones",
        given={"ids": ids},
        cause="position or place of a later chunk is wrong; the first chunk alone tells nothing.",
    )
