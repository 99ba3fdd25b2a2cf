"""Task 6: the contiguous KV cache."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import transformers

from grader import expect
from nanovllm.model.cache import CacheFullError, ContiguousCache, forward_cached
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import load_model

TARGET = Path(__file__).resolve().parents[2] / "models" / "target"
CONFIG = ModelConfig("llama", 61, 32, 2, 4, 2, 6, 56, 64)


def _qkv(generator, tokens, config=CONFIG):
    """Different q, k, v for each of the two layers."""
    sizes = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
    return [
        [torch.randn(tokens, heads, config.head_dim, generator=generator) for heads in sizes]
        for _ in range(config.num_layers)
    ]


def _oracle(q, k, v, window=None):
    """All tokens at once, causal, by torch's own attention."""
    tokens = len(q)
    mask = torch.ones(tokens, tokens).tril().bool()
    if window:
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


def _part(layers, start, end=None):
    return [[x[start:end] for x in qkv] for qkv in layers]


@pytest.mark.check(task=6, points=3, title="A token is written, then attends")
def test_one_token_at_a_time(generator):
    layers = _qkv(generator, 6)
    cache = ContiguousCache(CONFIG, capacity=9)
    lengths = [cache.length]
    for layer, qkv in enumerate(layers):
        cache.attend(layer, *(x[:3] for x in qkv))
        lengths.append(cache.length)
    cache.advance(3)
    expect(
        [*lengths, cache.length],
        [0, 0, 0, 3],
        call="cache.length of a new cache, after attend of 3 tokens in layer 0 and in layer 1, "
        "and after advance(3)",
        cause="advance moves length, once a step: every layer writes to the same places.",
    )
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
    answers = _run(ContiguousCache(CONFIG, 11, dtype=torch.bfloat16), layers, [4, 7])
    low = _run(ContiguousCache(CONFIG, 11), [[x.bfloat16() for x in qkv] for qkv in layers], [11])
    expect(
        [str(answer.dtype) for answer in (*answers, *low)],
        ["torch.float32"] * 2 + ["torch.bfloat16"] * 2,
        call="dtypes of what a cache in bfloat16 answers to q, k and v in float32, in 2 layers, "
        "and then one in float32 to bfloat16",
        cause="the answer has q's dtype.",
    )
    expect(
        answers,
        [_oracle(q, k.bfloat16().float(), v.bfloat16().float()) for q, k, v in layers],
        call="cache.attend(layer, q, k, v), q, k and v in float32, the cache in bfloat16",
        cause="k and v are rounded to the cache's dtype, those of this step, too; q is not.",
    )
    cache = ContiguousCache(CONFIG, capacity=11)
    _run(cache, [[x.clone().requires_grad_() for x in qkv] for qkv in layers], [4])
    expect(
        [answer.requires_grad for answer in _run(cache, _part(layers, 4), [7])],
        [False, False],
        call="requires_grad of the answers, in 2 layers, to q, k and v without gradients, after a "
        "step whose k and v had them",
        cause="K and V are stored without gradients: else the graph of every step stays in memory.",
    )


@pytest.mark.check(task=6, points=2, title="The layer's sliding window holds in the cache")
def test_window(generator):
    layers = _qkv(generator, 9)
    for windows in ((3, None), (None, 4)):
        cache = ContiguousCache(replace(CONFIG, windows=windows), capacity=9)
        expect(
            _run(cache, layers, [5, 1, 3]),
            [_oracle(*qkv, window) for qkv, window in zip(layers, windows, strict=True)],
            call=f"cache.attend(layer, q, k, v), windows of the two layers: {windows}",
            cause="each layer has the window that config.window(layer) says.",
        )


@pytest.mark.check(task=6, points=2, title="The last place can be used, and no more")
def test_capacity(generator):
    layers = _qkv(generator, 6)
    cache = ContiguousCache(CONFIG, capacity=5)
    expect(
        _run(cache, _part(layers, 0, 5), [4, 1]),
        [_oracle(*qkv) for qkv in _part(layers, 0, 5)],
        call="5 tokens through a cache of capacity 5",
        cause="the cache is full only when more than `capacity` tokens would be stored.",
    )
    expect.raises(
        CacheFullError,
        lambda: cache.attend(0, *(x[5:] for x in layers[0])),
        call="cache.attend with 1 token, 5 of 5 stored",
        cause="writing behind the end must be refused.",
    )
    cache.truncate(4)
    expect.raises(
        CacheFullError,
        lambda: cache.attend(0, *(x[:2] for x in layers[0])),
        call="cache.attend with 2 tokens, 4 of 5 stored",
        cause="writing behind the end must be refused, not cut short.",
    )
    cache.attend(1, *(x[4:5] for x in layers[1]))
    expect(
        cache.length,
        4,
        call="cache.length after attend of 1 token in the last layer, 4 of 5 stored",
        cause="advance moves length, attend does not.",
    )
    expect.raises(CacheFullError, lambda: cache.advance(2), call="cache.advance(2), 4 of 5 stored")
    expect(cache.length, 4, call="cache.length after the refused steps")
    expect(
        _run(cache, _part(layers, 4, 5), [1]),
        [_oracle(*qkv)[4:] for qkv in _part(layers, 0, 5)],
        call="cache.attend with 1 token after the refused steps, 4 of 5 stored",
        cause="a refused step leaves what is stored as it was: look before you write.",
    )


class Joined(TorchDispatchMode):
    """Keeps the size of the largest tensor that torch joins from others (cat, stack)."""

    largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        name = str(function)
        if any(joins in name for joins in ("aten.cat", "aten.stack", "aten.concat")):
            self.largest = max(self.largest, out.numel())
        return out


@pytest.mark.check(task=6, points=2, title="Memory is reserved once")
def test_reserved_once(generator):
    config = replace(CONFIG, num_kv_heads=4)  # H = G: nothing has to be repeated
    layers = _qkv(generator, 40, config)
    for dtype, size in ((torch.float32, 4), (torch.bfloat16, 2)):
        cache = ContiguousCache(config, capacity=40, dtype=dtype)
        expected = 2 * config.num_layers * 4 * 6 * size * 40
        expect(
            cache.nbytes,
            expected,
            call=f"ContiguousCache(config, capacity=40, dtype={dtype}).nbytes, nothing stored yet",
            cause="K and V of 40 tokens in every layer, reserved before the first token comes.",
        )
        expect(cache.capacity, 40, call="ContiguousCache(config, capacity=40).capacity")
        expect.that(
            cache.device == torch.device("cpu"),
            "the device is a torch.device, that of the CPU",
            observed=cache.device,
            call="ContiguousCache(config, capacity=40).device",
        )
    cache = ContiguousCache(config, capacity=40)
    _run(cache, layers, [36])
    with Joined() as joined:
        for layer, qkv in enumerate(layers):
            cache.attend(layer, *(x[36:37] for x in qkv))
    expect.that(
        joined.largest < 36 * 4 * 6,
        "no tensor as large as the stored K is joined from others in a step of one token",
        observed=joined.largest,
        call="cache.attend(layer, q, k, v), 36 tokens stored: numbers in the largest joined tensor",
        cause="growing by concatenation copies the whole cache for every token: write the new "
        "K and V into the memory that you reserved.",
    )


@pytest.mark.check(task=6, points=2, title="Truncated tokens are forgotten")
def test_truncate(generator):
    layers, wrong = _qkv(generator, 8), _qkv(generator, 4)
    cache = ContiguousCache(CONFIG, capacity=8)
    kept = _run(cache, _part(layers, 0, 3), [3])
    _run(cache, wrong, [4])
    cache.truncate(3)
    expect(cache.length, 3, call="7 tokens stored, cache.truncate(3); cache.length")
    expect.raises(
        ValueError,
        lambda: cache.truncate(5),
        call="cache.truncate(5) after cache.truncate(3)",
        cause="what was forgotten cannot be kept: only 3 tokens are stored now.",
    )
    rest = _run(cache, _part(layers, 3), [2, 3])
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
    for length in (8, 0):
        cache.truncate(length)
        expect(cache.length, length, call=f"8 tokens stored, cache.truncate({length}); length")


@pytest.mark.check(task=6, points=1, title="A copy goes its own way; reset forgets everything")
def test_clone_and_reset(generator):
    layers, others = _qkv(generator, 7), _qkv(generator, 7)
    cache = ContiguousCache(CONFIG, capacity=7)
    _run(cache, _part(layers, 0, 4), [4])
    copy = cache.clone()
    expect(
        [copy.length, copy.capacity, copy.nbytes],
        [4, 7, cache.nbytes],
        call="length, capacity and nbytes of cache.clone(), 4 of 7 tokens stored",
    )
    low = ContiguousCache(CONFIG, capacity=7, dtype=torch.bfloat16)
    expect(low.clone().nbytes, low.nbytes, call="nbytes of the clone() of a cache in bfloat16")
    meta = ContiguousCache(CONFIG, capacity=7, device="meta")
    expect(
        [each.device.type for each in (meta, meta.clone())],
        ["meta", "meta"],
        call="device.type of ContiguousCache(config, capacity=7, device='meta') and its clone()",
        cause="K and V are where the caller wants them, on a GPU for example.",
    )
    first, second = _run(cache, _part(layers, 4, 6), [2]), _run(copy, _part(others, 4, 6), [1, 1])
    mixed = [
        [torch.cat((x[:4], y[4:])) for x, y in zip(*pair, strict=True)]
        for pair in zip(layers, others, strict=True)
    ]
    for which, name, begun, all_of in (
        (cache, "the cache", first, layers),
        (copy, "its copy", second, mixed),
    ):
        rest = _run(which, _part(all_of, 6), [1])
        expect(
            [torch.cat(parts) for parts in zip(begun, rest, strict=True)],
            [_oracle(*qkv)[4:] for qkv in all_of],
            call=f"{name}, 4 tokens stored, goes on for 2 tokens, and for 1 more after the other "
            "has stored 2 of its own",
            cause="a copy has the stored tokens and shares no memory with the cache.",
        )
    expect([cache.length, copy.length], [7, 7], call="cache.length and copy.length after that")
    cache.reset()
    expect(cache.length, 0, call="cache.reset(); cache.length")
    expect(
        _run(cache, others, [5, 2]),
        [_oracle(*qkv) for qkv in others],
        call="7 tokens after cache.reset()",
        cause="nothing of the first sequence may be seen.",
    )


class Counter:
    """Stands in for a model: counts rows and keeps the positions it is called with."""

    places = 20

    def __init__(self):
        self.positions = []

    def __call__(self, token_ids, positions, attend):
        self.positions += torch.arange(self.places)[positions].tolist()  # as GPT-2 looks them up
        row = torch.zeros(len(token_ids), 4, 6)
        for layer in range(2):
            attend(layer, row, row[:, :2], row[:, :2])
        return torch.zeros(len(token_ids), 32)


@pytest.mark.check(task=6, points=1, title="n tokens are computed, not n(n+1)/2")
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
    expect.raises(
        CacheFullError,
        lambda: forward_cached(model, cache, ids[:1]),
        call="forward_cached(model, cache, ids) with 1 token, 12 of 12 stored",
    )
    expect(
        cache.length,
        12,
        call="cache.length after forward_cached was refused",
        cause="a refused step leaves the cache as it was.",
    )
    model.places = 12
    expect.raises(
        CacheFullError,
        lambda: forward_cached(model, cache, ids[:1]),
        call="forward_cached(model, cache, ids) with 1 token, 12 of 12 stored, of a model for 12",
        cause="refuse before the model looks up a position that it does not have.",
    )


@pytest.mark.check(task=6, points=1, title="The bundled model with a cache equals transformers")
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


CAPACITY = 8


def _history(rng):
    """Random calls: ("chunk", tokens), ("truncate", length), ("reset", None), ("clone", None)."""
    calls = []
    for _ in range(20):
        kind = rng.choice(["chunk", "truncate", "clone", "reset"], p=[0.6, 0.25, 0.1, 0.05])
        top = {"chunk": CAPACITY // 2, "truncate": CAPACITY + 1}.get(kind)
        first = 1 if kind == "chunk" else 0
        calls.append((str(kind), int(rng.integers(first, top + 1)) if top else None))
    return calls


def _replay(history, seed):
    """The first call of a history that goes wrong: its number, what came and what should.

    What is cloned is written over then: the copy must not see that.
    """
    generator = torch.Generator().manual_seed(seed)
    config = replace(CONFIG, windows=(None, 3))
    cache, stored = ContiguousCache(config, CAPACITY), _qkv(generator, 0)
    for number, (kind, size) in enumerate(history):
        found = wanted = "nothing"
        length = len(stored[0][0])
        if kind == "chunk":
            new = _qkv(generator, size)
            both = [
                [torch.cat(x) for x in zip(*pair, strict=True)]
                for pair in zip(stored, new, strict=True)
            ]
            wanted = "CacheFullError"
            if length + size <= CAPACITY:
                stored = both
                wanted = [_oracle(*both[0])[length:], _oracle(*both[1], window=3)[length:]]
            try:
                found = _run(cache, new, [size])
            except CacheFullError:
                found = "CacheFullError"
        elif kind == "truncate":
            wanted = "ValueError" if size > length else "nothing"
            stored = stored if size > length else _part(stored, 0, size)
            try:
                cache.truncate(size)
            except ValueError:
                found = "ValueError"
        elif kind == "clone":
            old, cache = cache, cache.clone()
            old.reset()
            _run(old, _qkv(generator, 1), [1])
        else:
            cache.reset()
            stored = _part(stored, 0, 0)
        if cache.length != len(stored[0][0]) or not _same(found, wanted):
            found = {"gives": found, "cache.length": cache.length}
            return number, found, {"gives": wanted, "cache.length": len(stored[0][0])}
    return None


def _same(found, wanted):
    if isinstance(found, str) or isinstance(wanted, str):
        return found == wanted
    return all(torch.allclose(a, b, 1e-3, 1e-4) for a, b in zip(found, wanted, strict=True))


def _shrunk(history, seed):
    """The wrong history without every call that it goes wrong without."""
    history = history[: _replay(history, seed)[0] + 1]
    for number in reversed(range(len(history))):
        shorter = history[:number] + history[number + 1 :]
        failed = _replay(shorter, seed)
        if failed is not None:
            history = shorter[: failed[0] + 1]
    return history


@pytest.mark.check(
    task=6, points=1, title="Random histories of chunks, truncations and copies", stress=True
)
def test_random_histories(rng):
    for _ in range(5):
        history, seed = _history(rng), int(rng.integers(1 << 30))
        if _replay(history, seed) is not None:
            history = _shrunk(history, seed)
            _, found, wanted = _replay(history, seed)
            drawn = " > ".join(kind if size is None else f"{kind} {size}" for kind, size in history)
            expect(
                found,
                wanted,
                call="the last call of the shortest wrong history found: what it gives or raises, "
                "and cache.length then",
                given={"history": drawn, "capacity": CAPACITY, "windows": (None, 3)},
                cause="each call is right by the checks above; it is their order that is new.",
            )
