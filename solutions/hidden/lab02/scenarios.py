"""Hidden scenarios of lab 02: inputs of other shapes than those of the visible checks."""

from pathlib import Path

from grader.checks.scenarios import scenario


def _tensor(rng, *shape, scale=1.0):
    import torch

    return torch.from_numpy(rng.normal(0.0, scale, shape).astype("float32"))


def _config(rng, family="qwen3", layers=2, **more):
    from nanovllm.model.config import ModelConfig

    groups = int(rng.integers(1, 4))
    heads = groups * int(rng.integers(1, 4))
    if family == "gpt2":
        groups = heads
    shape = {
        "vocab_size": int(rng.integers(40, 90)),
        "hidden_size": int(rng.integers(9, 25)),
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": groups,
        "head_dim": 2 * int(rng.integers(2, 7)),
        "intermediate_size": int(rng.integers(20, 40)),
        "max_position": 128,
        "norm_eps": float(rng.uniform(0.001, 0.2)),
        "rope_theta": float(rng.uniform(50.0, 5000.0)),
    }
    biases = dict.fromkeys(("qkv_bias", "output_bias", "mlp_bias"), family == "gpt2")
    return ModelConfig(family, **{**shape, "qk_norm": family == "qwen3", **biases, **more})


def _ids(rng, config, count):
    import torch

    return torch.from_numpy(rng.integers(0, config.vocab_size, count))


def _chunks(rng, total):
    sizes = []
    while sum(sizes) < total:
        sizes.append(int(rng.integers(1, min(6, total - sum(sizes)) + 1)))
    return sizes


@scenario(task=1)
def norms_of_other_shapes(nanovllm, rng):
    from nanovllm.model.norms import layer_norm, rms_norm

    size = int(rng.integers(3, 40))
    eps = float(rng.uniform(0.01, 0.5))
    x = _tensor(rng, 2, 3, size, scale=0.5)
    weight, bias = _tensor(rng, size), _tensor(rng, size)
    low, tiny = (300 * x).half(), 1e-3 * x
    return {
        "rms": rms_norm(x, weight, eps),
        "rms float16": rms_norm(low, weight.half(), eps).float(),
        "rms of small numbers": rms_norm(tiny, weight, eps * 1e-6),
        "layer": layer_norm(x + 2, weight, bias, eps),
        "layer float16": layer_norm(low, weight.half(), bias.half(), eps).float(),
        "dtype": str(rms_norm(x.bfloat16(), weight.bfloat16(), eps).dtype),
    }


@scenario(task=2)
def rope_at_random_positions(nanovllm, rng):
    import torch

    from nanovllm.model.config import RopeScaling
    from nanovllm.model.rope import (
        apply_rope,
        inverse_frequencies,
        llama3_frequencies,
        rotation_angles,
    )

    dim = 2 * int(rng.integers(2, 20))
    frequencies = inverse_frequencies(dim, float(rng.uniform(20.0, 1e6)))
    low = float(rng.uniform(0.5, 2.0))
    scaling = RopeScaling(
        "llama3",
        factor=float(rng.uniform(2.0, 32.0)),
        original_max_position=int(rng.integers(20, 400)),
        low_freq_factor=low,
        high_freq_factor=low + float(rng.uniform(0.5, 6.0)),
    )
    positions = torch.from_numpy(rng.integers(0, 200, 6))
    cos, sin = rotation_angles(positions, frequencies)
    return {
        "frequencies": frequencies,
        "scaled": llama3_frequencies(frequencies, scaling),
        "cos": cos,
        "sin": sin,
        "turned": apply_rope(_tensor(rng, 6, 6, dim), cos, sin),
    }


@scenario(task=3)
def masks_and_softmax(nanovllm, rng):
    import torch

    from nanovllm.model.attention import causal_mask, masked_softmax

    queries, keys = (int(n) for n in rng.integers(1, 12, 2))
    window = int(rng.integers(1, 12))
    scores = _tensor(rng, 2, queries, keys, scale=400.0)
    mask = torch.from_numpy(rng.random((queries, keys)) < 0.4)
    return {
        "causal": causal_mask(queries, keys).int(),
        "window": causal_mask(queries, keys, window=window).int(),
        "weights": masked_softmax(scores, mask),
    }


@scenario(task=3)
def attention_of_random_shapes(nanovllm, rng):
    import torch

    from nanovllm.model.attention import attention

    groups, group = int(rng.integers(1, 4)), int(rng.integers(1, 5))
    queries, more, dim = int(rng.integers(1, 7)), int(rng.integers(0, 9)), int(rng.integers(3, 12))
    q = _tensor(rng, queries, groups * group, dim, scale=2.0)
    k, v = (_tensor(rng, queries + more, groups, dim, scale=2.0) for _ in "kv")
    mask = torch.from_numpy(rng.random((queries, queries + more)) < 0.5)
    return {
        "causal": attention(q, k, v),
        "window": attention(q, k, v, window=int(rng.integers(1, 6))),
        "masked": attention(q, k, v, mask=mask),
        "scaled": attention(q, k, v, scale=float(rng.uniform(0.05, 1.0))),
        "fewer keys": attention(q, k[:1], v[:1]),
    }


@scenario(task=4)
def a_block_of_random_shape(nanovllm, rng):
    import torch

    from nanovllm.model.block import DecoderBlock
    from nanovllm.model.loader import dummy_model

    seen = {}

    class Turn:
        def apply(self, x):
            return 1.5 * x - 0.25

    def attend(layer, q, k, v):
        seen.update(layer=layer, q=q, k=k, v=v)
        return torch.tanh(q)

    config = _config(rng, qkv_bias=True, output_bias=True, mlp_bias=True)
    block = DecoderBlock(config, layer=1)
    block.load_state_dict(dummy_model(config, seed=int(rng.integers(1000))).layers[1].state_dict())
    x = _tensor(rng, config.num_heads, config.hidden_size)
    with torch.no_grad():
        return {"out": block(x, Turn(), attend), "mlp": block.mlp(x), **seen}


@scenario(task=5)
def hidden_states_and_logits(nanovllm, rng):
    import torch

    from nanovllm.model.attention import RecomputeAttend
    from nanovllm.model.config import RopeScaling
    from nanovllm.model.loader import dummy_model

    scaling = RopeScaling("llama3", 4.0, 24)
    observed = {}
    for family, more in (
        ("qwen3", {"tie_embeddings": True}),
        ("llama", {"rope_scaling": scaling}),
        ("mistral", {"windows": (3, 3)}),
        ("qwen2", {"qkv_bias": True, "windows": (None, 2)}),
        ("gpt2", {"tie_embeddings": True}),
    ):
        config = _config(rng, family, **more)
        model = dummy_model(config, seed=int(rng.integers(1000)))
        ids = _ids(rng, config, 11)
        start = int(rng.integers(0, 50))
        hidden = model(ids, torch.arange(start, start + 11), RecomputeAttend(config))
        observed[family] = {"hidden": hidden, "logits": model.logits(hidden[[2, 7, 10]])}
    return observed


@scenario(task=6)
def any_chunks_through_the_cache(nanovllm, rng):
    import torch

    from nanovllm.model.cache import ContiguousCache, forward_cached
    from nanovllm.model.loader import dummy_model

    config = _config(rng, layers=3, windows=(None, int(rng.integers(1, 6)), None))
    model = dummy_model(config, seed=int(rng.integers(1000)))
    ids = _ids(rng, config, 17)
    cache = ContiguousCache(config, capacity=17)
    whole = [forward_cached(model, cache, part) for part in ids.split(_chunks(rng, 17))]
    full = cache.length
    cache.truncate(int(rng.integers(1, 16)))
    kept = cache.length
    again = [forward_cached(model, cache, part) for part in ids[kept:].split([1] * (17 - kept))]
    return {
        "hidden": torch.cat(whole),
        "again": torch.cat(again),
        "lengths": [full, kept, cache.length],
        "bytes": cache.nbytes,
    }


@scenario(task=6)
def a_cache_that_is_too_small(nanovllm, rng):
    from nanovllm.model.cache import CacheFullError, ContiguousCache

    config = _config(rng)
    capacity = int(rng.integers(3, 9))
    cache = ContiguousCache(config, capacity)
    q = _tensor(rng, capacity + 1, config.num_heads, config.head_dim)
    k = _tensor(rng, capacity + 1, config.num_kv_heads, config.head_dim)
    log = []
    for size in (capacity + 1, capacity, 1):
        try:
            cache.attend(0, q[:size], k[:size], k[:size])
            cache.advance(size)
            log.append("stored")
        except CacheFullError:
            log.append("refused")
        log.append(cache.length)
    for length in (capacity + 1, -1, 1):
        try:
            cache.truncate(length)
            log.append("truncated")
        except ValueError:
            log.append("refused")
        log.append(cache.length)
    return {"log": log, "stored": cache.k[0]}


@scenario(task=7)
def costs_of_random_models(nanovllm, rng):
    from nanovllm.model import accounting

    observed = []
    for family in ("llama", "gpt2", "qwen3"):
        config = _config(rng, family, layers=int(rng.integers(1, 50)))
        new, cached, rows = (int(n) for n in rng.integers(1, 300, 3))
        size = int(rng.choice([1, 2, 4]))
        per_token = accounting.kv_bytes_per_token(config, size)
        rates = (float(rng.uniform(1e9, 1e10)), float(rng.uniform(1e9, 1e12)))
        observed.append(
            {
                "bytes per token": per_token,
                "tokens": accounting.tokens_in_budget(config, per_token * 7 - 1, size),
                "computed": [accounting.tokens_computed(new, rows, c) for c in (True, False)],
                "flops": accounting.step_flops(config, new, cached, rows),
                "generation": [
                    accounting.generation_flops(config, new, 20, c) for c in (True, False)
                ],
                "moved": accounting.step_bytes(config, new, cached, size),
                "intensity": accounting.arithmetic_intensity(config, new, cached, size),
                "seconds": [
                    accounting.step_seconds(config, n, cached, *rates, size) for n in (1, new)
                ],
            }
        )
    return observed


@scenario(task=5)
def logits_of_the_bundled_model(nanovllm, rng):
    import torch

    from nanovllm.model.attention import RecomputeAttend
    from nanovllm.model.loader import load_model

    folder = Path(nanovllm.__file__).resolve().parents[1] / "models" / "target"
    model = load_model(folder)
    ids = _ids(rng, model.config, 30)
    hidden = model(ids, torch.arange(30), RecomputeAttend(model.config))
    return {"logits": model.logits(hidden[-4:])}
