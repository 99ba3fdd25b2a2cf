"""Hidden scenarios of lab 02: paths that the visible checks do not take.

Views in place of fresh tensors, parts used together, checkpoints written by hand, steps that are
given up halfway, several caches at a time.
"""

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


def _drawn(rng, module):
    """A module with random weights, drawn by name: those of a student may stand in any order."""
    import torch

    generator = torch.Generator().manual_seed(int(rng.integers(1000)))
    for _, weight in sorted(module.state_dict().items()):
        noise = torch.randn(weight.shape, generator=generator)
        weight.copy_(
            1.0 + 0.3 * noise if weight.ndim == 1 else 1.5 * noise * weight.shape[1] ** -0.5
        )
    return module


def _model(rng, config):
    """A model of random weights."""
    from nanovllm.model.loader import dummy_model

    return _drawn(rng, dummy_model(config))


def _ids(rng, config, count):
    import torch

    return torch.from_numpy(rng.integers(0, config.vocab_size, count))


def _chunks(rng, total):
    sizes = []
    while sum(sizes) < total:
        sizes.append(int(rng.integers(1, min(6, total - sum(sizes)) + 1)))
    return sizes


@scenario(task=1)
def norms_of_views(nanovllm, rng):
    """Views with other strides, vectors of one entry, and modules filled as checkpoints do it."""
    import torch

    from nanovllm.model.norms import LayerNorm, RMSNorm, layer_norm, rms_norm

    size = int(rng.integers(3, 40))
    eps = float(rng.uniform(0.01, 0.5))
    x = _tensor(rng, size, 4, scale=0.5).T
    weight, bias = _tensor(rng, 2 * size)[::2], _tensor(rng, size)
    modules = {}
    with torch.no_grad():
        for kind, state in (
            (RMSNorm, {"weight": weight}),
            (LayerNorm, {"weight": weight, "bias": bias}),
        ):
            norm = kind(size, eps)
            norm.load_state_dict(state, assign=True)
            modules[kind.__name__] = norm(x[None, :, None])
            modules[f"fresh {kind.__name__}"] = kind(size, eps)(x)
        low = RMSNorm(size, eps).half()
        modules["half"] = low((300 * x).half())
        wide = {
            "rms": rms_norm(x, weight, eps),
            "rms of small numbers": rms_norm(1e-3 * x, weight, eps * 1e-6),
            "layer": layer_norm(x + 100.0, weight, bias, eps),
            "layer float16": layer_norm((300 * x).half(), weight.half(), bias.half(), eps),
            "one entry": layer_norm(x[:, :1], weight[:1], bias[:1], eps),
        }
        # Quotients far below float16's smallest number are 0 before the weight multiplies them.
        tiny = torch.from_numpy(rng.uniform(0.5e-5, 1.5e-5, 8)).half()
        tiny[int(rng.integers(8))] = 2000.0
        large = torch.from_numpy(rng.uniform(3e4, 6e4, 8)).half()
        wide["tiny"] = 1e6 * rms_norm(tiny, large, eps)[tiny < 1].float()
    low = [str(wide["layer float16"].dtype), str(modules["half"].dtype)]
    return {**wide, **modules, "dtypes": low, "x": x}


@scenario(task=2)
def rope_adds_up(nanovllm, rng):
    """A turn by p and then by r is one by p + r; slices of a larger tensor; scaled frequencies."""
    import torch

    from nanovllm.model.config import RopeScaling
    from nanovllm.model.rope import (
        apply_rope,
        inverse_frequencies,
        llama3_frequencies,
        rotation_angles,
    )

    dim = 2 * int(rng.integers(4, 20))
    frequencies = inverse_frequencies(dim, float(rng.uniform(20.0, 1e6)))
    low = float(rng.uniform(0.5, 2.0))
    scaling = RopeScaling(
        "llama3",
        factor=float(rng.uniform(2.0, 32.0)),
        original_max_position=int(rng.integers(20, 400)),
        low_freq_factor=low,
        high_freq_factor=low + float(rng.uniform(2.0, 6.0)),
    )
    usual = RopeScaling("llama3", factor=scaling.factor, original_max_position=300)
    scaled = llama3_frequencies(frequencies, scaling)
    first, second = torch.from_numpy(rng.integers(0, 100, (2, 6)))
    qkv = _tensor(rng, 6, 5, dim)
    q, k = qkv[:, :3], qkv[:, 3:]
    twice = apply_rope(
        apply_rope(q, *rotation_angles(first, scaled)), *rotation_angles(second, scaled)
    )
    cos, sin = rotation_angles(first + second, scaled)
    half = q.bfloat16()
    half[..., dim // 2 :] = 0  # leaves one product of two rounded numbers, in any arithmetic
    angles = _tensor(rng, 6, dim // 2)  # not the student's: one ulp more may round the other way
    return {
        "frequencies": frequencies,
        "scaled": [scaled, llama3_frequencies(inverse_frequencies(64, 1e4), usual)],
        "cos": cos,
        "sin": sin,
        "twice": twice,
        "once": apply_rope(k, cos, sin),
        "low": apply_rope(q.half(), cos, sin),
        "rounded": apply_rope(half, angles.cos(), angles.sin()).float(),
        "dtypes": [str(apply_rope(k.to(d), cos, sin).dtype) for d in (torch.half, torch.bfloat16)],
        "untouched": qkv,
    }


@scenario(task=3)
def attention_step_by_step(nanovllm, rng):
    """The same tokens at once, in chunks and one by one, as slices of one tensor."""
    import torch

    from nanovllm.model.attention import attention

    groups, group = int(rng.integers(1, 4)), int(rng.integers(1, 5))
    tokens, dim = int(rng.integers(4, 12)), int(rng.integers(3, 12))
    window = int(rng.integers(1, 4))
    heads = groups * group
    qkv = _tensor(rng, tokens, heads + 2 * groups, dim, scale=2.0)
    q, k, v = qkv.split((heads, groups, groups), dim=1)
    parts, start = [], 0
    for size in _chunks(rng, tokens):
        end = start + size
        parts.append(attention(q[start:end], k[:end], v[:end], window=window))
        start = end
    single = [attention(q[i : i + 1], k[: i + 1], v[: i + 1], scale=0.3) for i in range(tokens)]
    return {
        "at once": [attention(q, k, v), attention(q, k, v, window=window)],
        "chunks": torch.cat(parts),
        "one by one": torch.cat(single),
        "the last": attention(q[-1:], k, v, window=window),
        "scale of zero": attention(q, k, v, scale=0.0),
        "fewer keys": attention(q, k[:2], v[:2], window=window),
        "untouched": qkv,
    }


@scenario(task=3)
def attention_of_masks_and_formats(nanovllm, rng):
    """Block-wise masks, rows that see nothing among rows that do, hidden rubbish, 16 bits."""
    import torch

    from nanovllm.model.attention import attention

    q = _tensor(rng, 6, 4, 8, scale=3.0)
    k, v = (_tensor(rng, 9, 2, 8, scale=3.0) for _ in "kv")
    # Scores of thousands are rounded to 0.001, and a weight changes by as much. Those of whole
    # numbers, with a D whose root is whole, are exact in any order of arithmetic.
    whole_q, whole_k = (
        torch.from_numpy(rng.integers(-4, 5, shape).astype("float32"))
        for shape in ((6, 4, 16), (9, 2, 16))
    )
    wide_v = _tensor(rng, 9, 2, 16, scale=3.0)
    mask = torch.from_numpy(rng.random((6, 9)) < 0.3)
    mask[int(rng.integers(0, 6))] = False
    mask[:, 8] = False
    loud = k.clone()
    loud[8] = 1e4
    sizes = torch.tensor([1.0, 30.0, 1000.0, 0.0, -200.0, 5.0])[:, None, None]
    return {
        "masked": attention(q, loud, v, mask=mask),
        "window is ignored": attention(q, k, v, mask=mask, window=1),
        "sizes": attention(sizes * whole_q, whole_k, wide_v),
        "bfloat16": attention(q.bfloat16(), k.bfloat16(), v.bfloat16()),
        "float16": attention((60 * whole_q).half(), (60 * whole_k).half(), wide_v.half()),
        "dtype": [
            str(attention(*(x.to(d) for x in (q, k, v))).dtype) for d in (torch.half, torch.float)
        ],
    }


@scenario(task=4)
def blocks_of_every_family(nanovllm, rng):
    """Blocks of all families, a rotation of every row by its own numbers, weights by name."""
    from types import SimpleNamespace

    import torch

    from nanovllm.model.block import DecoderBlock

    observed = {}
    for family, more in (
        ("qwen3", {}),
        ("llama", {"qkv_bias": True, "output_bias": True, "mlp_bias": True}),
        ("qwen2", {"qkv_bias": True}),
        ("gpt2", {}),
    ):
        config = _config(rng, family, layers=3, **more)
        block = _drawn(rng, DecoderBlock(config, 2))
        seen = {}

        def attend(layer, q, k, v, seen=seen):
            seen.update(layer=layer, q=q, k=k, v=v)
            return torch.tanh(q)

        turn = _tensor(rng, 5, 1, config.head_dim)
        rotation = SimpleNamespace(apply=lambda x, turn=turn: turn * x + x.flip(-1))
        with torch.no_grad():
            out = block(_tensor(rng, 5, config.hidden_size), rotation, attend)
        weights = block.state_dict().items()
        shapes = sorted((name, list(value.shape)) for name, value in weights)
        observed[family] = {"out": out, "shapes": shapes, **seen}
    return observed


@scenario(task=5)
def checkpoints_written_by_hand(nanovllm, rng):
    """Files as several tools wrote them: shards, buffers, prefixes, tied tables stored twice."""
    import json
    import tempfile

    import torch
    from safetensors.torch import save_file

    from nanovllm.model.attend import RecomputeAttend
    from nanovllm.model.loader import load_model

    V, E, inner, L = 31, 12, 20, 12
    gpt2 = {
        "model_type": "gpt2", "vocab_size": V, "n_embd": E, "n_head": 3, "n_layer": L,
        "n_positions": 40, "n_inner": inner, "eos_token_id": 0,
    }  # fmt: skip
    tensors = {"wte.weight": (V, E), "wpe.weight": (40, E), "ln_f.weight": (E,), "ln_f.bias": (E,)}
    for n in range(L):
        for name, shape in (
            ("ln_1.weight", (E,)), ("ln_1.bias", (E,)), ("ln_2.weight", (E,)), ("ln_2.bias", (E,)),
            ("attn.c_attn.weight", (E, 3 * E)), ("attn.c_attn.bias", (3 * E,)),
            ("attn.c_proj.weight", (E, E)), ("attn.c_proj.bias", (E,)),
            ("mlp.c_fc.weight", (E, inner)), ("mlp.c_fc.bias", (inner,)),
            ("mlp.c_proj.weight", (inner, E)), ("mlp.c_proj.bias", (E,)),
            ("attn.bias", (1, 1, 4, 4)),
        ):  # fmt: skip
            tensors[f"h.{n}.{name}"] = shape
    qwen = {
        "model_type": "qwen3", "vocab_size": V, "hidden_size": E, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 6, "num_hidden_layers": 2, "intermediate_size": inner,
        "max_position_embeddings": 64, "rope_theta": 300.0, "tie_word_embeddings": True,
    }  # fmt: skip
    names = {
        "model.embed_tokens.weight": (V, E),
        "model.norm.weight": (E,),
        "lm_head.weight": (V, E),
    }
    for n in range(2):
        for name, shape in (
            ("input_layernorm", (E,)), ("post_attention_layernorm", (E,)),
            ("self_attn.q_proj", (24, E)), ("self_attn.k_proj", (12, E)),
            ("self_attn.v_proj", (12, E)), ("self_attn.o_proj", (E, 24)),
            ("self_attn.q_norm", (6,)), ("self_attn.k_norm", (6,)),
            ("mlp.gate_proj", (inner, E)), ("mlp.up_proj", (inner, E)),
            ("mlp.down_proj", (E, inner)),
        ):  # fmt: skip
            names[f"model.layers.{n}.{name}.weight"] = shape
        names[f"model.layers.{n}.self_attn.rotary_emb.inv_freq"] = (3,)
    observed = {}
    ids = torch.from_numpy(rng.integers(0, V, 9))
    for kind, config, shapes, prefix in (
        ("gpt2", gpt2, tensors, ""),
        ("gpt2 with prefix", gpt2, tensors, "transformer."),
        ("qwen3", qwen, names, ""),
    ):
        weights = {prefix + name: _tensor(rng, *shape, scale=0.5) for name, shape in shapes.items()}
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            (folder / "config.json").write_text(json.dumps(config))
            order = sorted(weights)
            shards = {"a.safetensors": order[::2], "b.safetensors": order[1::2]}
            for file, part in shards.items():
                save_file({name: weights[name] for name in part}, folder / file)
            index = {"weight_map": {name: file for file, part in shards.items() for name in part}}
            (folder / "model.safetensors.index.json").write_text(json.dumps(index))
            model = load_model(folder)
        hidden = model(ids, torch.arange(9), RecomputeAttend(model.config))
        observed[kind] = {"logits": model.logits(hidden), "names": sorted(model.state_dict())}
    return observed


@scenario(task=5)
def names_of_tensors(nanovllm, rng):
    """Prefixes that stand inside a name, buffers outside the layers, names that look like them."""
    from nanovllm.model.checkpoint_names import module_tensors

    layer = f"layers.{int(rng.integers(100))}."
    observed = []
    for family, prefix, names in (
        ("gpt2", "transformer.", (
            "h.3.side_transformer.weight", "a.transformer.b", "h.10.attn.c_attn.weight",
            "h.2.attn.bias", "h.2.attn.extra.weight", "wte.weight", "lm_head.weight",
        )),
        *((family, "model.", (
            "rotary_emb.inv_freq", "rotary_emb.inv_freq.scale", f"{layer}rotary_emb.inv_freq",
            f"{layer}self_attn.rotary_emb.inv_freq", f"{layer}rotary_emb.inv_freqs",
            f"{layer}model.weight", f"side_model.{layer}bias",
        )) for family in ("llama", "mistral", "qwen2", "qwen3")),
    ):  # fmt: skip
        for name in names:
            for full in (name, prefix + name):
                pairs = dict(module_tensors(family, full, _tensor(rng, 4, 12)))
                observed.append([family, full, [[key, pairs[key]] for key in sorted(pairs)]])
    return observed


@scenario(task=5)
def rows_of_two_sequences(nanovllm, rng):
    """Tokens of two sequences in one step, in mixed order, as the engine of lab 04 sends them."""
    import torch

    from nanovllm.model.attend import RecomputeAttend
    from nanovllm.model.config import RopeScaling

    observed = {}
    for family, more in (
        ("qwen3", {"tie_embeddings": True}),
        ("llama", {"rope_scaling": RopeScaling("llama3", 4.0, 24)}),
        ("mistral", {"windows": (3, 3)}),
        ("qwen2", {"qkv_bias": True, "windows": (None, 2)}),
        ("gpt2", {"tie_embeddings": True}),
    ):
        config = _config(rng, family, **more)
        model = _model(rng, config)
        ids, start = _ids(rng, config, 11), int(rng.integers(0, 50))
        owner = torch.from_numpy(rng.integers(0, 2, 11))
        positions = torch.empty(11, dtype=torch.long)
        for which in (0, 1):
            rows = owner == which
            positions[rows] = start * which + torch.arange(int(rows.sum()))
        layers = []

        def attend(layer, q, k, v, owner=owner, config=config, layers=layers):
            layers.append(layer)
            out = torch.zeros_like(q)
            for which in owner.unique():
                rows = owner == which
                out[rows] = RecomputeAttend(config)(layer, q[rows], k[rows], v[rows])
            return out

        hidden = model(ids, positions, attend)
        one = model(ids[:1], positions[:1], RecomputeAttend(config))
        observed[family] = {
            "hidden": hidden,
            "layers": layers,
            "one": one,
            "logits": model.logits(hidden[[2, 7, 10]]),
        }
    return observed


@scenario(task=6)
def caches_that_branch(nanovllm, rng):
    """A prompt read once, then three continuations of it, each in a copy, with windows."""
    import torch

    from nanovllm.model.cache import ContiguousCache, forward_cached

    config = _config(rng, layers=3, windows=(None, int(rng.integers(1, 6)), None))
    model = _model(rng, config)
    cache = ContiguousCache(config, capacity=17)
    prompt = [forward_cached(model, cache, part) for part in _ids(rng, config, 8).split(3)]
    branches = [cache, cache.clone(), cache.clone()]
    hidden = [[] for _ in branches]
    for _ in range(4):  # in turn, so that shared memory would show
        for branch, rows in zip(branches, hidden, strict=True):
            rows.append(forward_cached(model, branch, _ids(rng, config, int(rng.integers(1, 3)))))
    late = branches[1].clone()
    late.truncate(int(rng.integers(1, 9)))
    again = forward_cached(model, late, _ids(rng, config, 4))
    late.reset()
    return {
        "prompt": torch.cat(prompt),
        "branches": [torch.cat(rows) for rows in hidden],
        "again": again,
        "from the start": forward_cached(model, late, _ids(rng, config, 17)),
        "lengths": [branch.length for branch in branches],
        "bytes": [cache.nbytes, late.nbytes, late.capacity],
        "on the CPU": [branch.device == torch.device("cpu") for branch in (*branches, late)],
    }


@scenario(task=6)
def gradients_stay_outside(nanovllm, rng):
    """K and V that carry gradients, then some that do not: what is read of both has none."""

    from nanovllm.model.cache import ContiguousCache

    config = _config(rng)
    cache = ContiguousCache(config, capacity=9)
    seen = []
    for carries in (True, False, True):
        for layer in range(config.num_layers):
            q, k, v = (
                _tensor(rng, 3, heads, config.head_dim)
                for heads in (config.num_heads, config.num_kv_heads, config.num_kv_heads)
            )
            out = cache.attend(layer, q, k.requires_grad_(carries), v.requires_grad_(carries))
            seen.append([out.requires_grad, out.detach().clone()])
        cache.advance(3)
    return seen


@scenario(task=6)
def learned_positions_in_a_cache(nanovllm, rng):
    """GPT-2 counts positions from 0: any offset that all tokens share would show."""
    import torch

    from nanovllm.model.cache import CacheFullError, ContiguousCache, forward_cached

    config = _config(rng, "gpt2")
    model = _model(rng, config)
    cache = ContiguousCache(config, capacity=config.max_position)  # the model has no more either
    seen = []
    for total in (9, int(rng.integers(10, 14)), int(rng.integers(3, 9))):
        parts = _ids(rng, config, total).split(_chunks(rng, total))
        seen.append(torch.cat([forward_cached(model, cache, part) for part in parts if len(part)]))
        cache.truncate(int(rng.integers(0, min(7, cache.length + 1))))
        try:
            forward_cached(model, cache, _ids(rng, config, config.max_position + 1 - cache.length))
        except CacheFullError:
            seen.append(["full", cache.length])
    return seen


@scenario(task=6)
def long_lives_of_caches(nanovllm, rng):
    """Two caches, one of them in 16 bits, through 60 calls each: steps that are given up before
    `advance`, layers in another order, refusals, truncations to every length, copies, resets."""
    import torch

    from nanovllm.model.cache import CacheFullError, ContiguousCache

    windows = (None, int(rng.integers(1, 5)), int(rng.integers(1, 9)))
    observed = []
    for dtype in (torch.bfloat16, torch.float32):
        config = _config(rng, layers=3, windows=windows)
        capacity = int(rng.integers(6, 12))
        cache = ContiguousCache(config, capacity, dtype=dtype)
        log, seen = [], []

        def step(size, layers, wide, cache, config=config, seen=seen):
            for layer in layers:
                q, k, v = (
                    _tensor(rng, size, heads, config.head_dim).to(wide)
                    for heads in (config.num_heads, config.num_kv_heads, config.num_kv_heads)
                )
                out = cache.attend(layer, q, k, v)
                seen.append({"answer": out, "dtype": str(out.dtype)})

        for _ in range(60):
            size, what = int(rng.integers(1, 5)), int(rng.integers(0, 12))
            wide = torch.float32 if rng.random() < 0.8 else torch.bfloat16
            try:
                if what == 0:
                    step(size, [0, 1], wide, cache)  # given up: the next step writes over it
                elif what <= 3:
                    cache.truncate(int(rng.integers(-1, capacity + 2)))
                elif what == 4:
                    old, cache = cache, cache.clone()
                    old.reset()
                    step(1, [1], wide, old)  # what the old one does is nothing to its copy
                elif what == 5 and rng.random() < 0.3:
                    cache.reset()
                elif what == 6:
                    cache.advance(capacity + 1)
                else:
                    step(size, [2, 0, 1], wide, cache)
                    cache.advance(size)
                log.append(cache.length)
            except CacheFullError:
                log.append(["full", cache.length])
            except ValueError:
                log.append(["refused", cache.length])
        observed.append({"log": log, "seen": seen, "bytes": cache.nbytes})
    return observed


@scenario(task=7)
def costs_of_random_models(nanovllm, rng):
    from dataclasses import replace

    from nanovllm.model import accounting

    observed = []
    for family in ("llama", "gpt2", "qwen3"):
        config = _config(rng, family, layers=int(rng.integers(1, 50)))
        if family == "llama":
            config = replace(config, num_heads=config.num_kv_heads * int(rng.integers(2, 5)))
        new, cached, rows = (int(n) for n in rng.integers(1, 300, 3))
        size = int(rng.choice([1, 2, 4]))
        per_token = accounting.kv_bytes_per_token(config, size)
        huge = replace(
            config,
            vocab_size=int(rng.integers(2**28, 2**29)),
            hidden_size=int(rng.integers(2**28, 2**29)),
        )
        rates = (float(rng.uniform(1e9, 1e10)), float(rng.uniform(1e9, 1e12)))
        observed.append(
            {
                "bytes per token": per_token,
                "tokens": [
                    accounting.tokens_in_budget(config, per_token * many - 1, size)
                    for many in (7, int(rng.integers(10**16, 10**17)))
                ],
                "computed": [accounting.tokens_computed(new, rows, c) for c in (True, False)],
                "flops": accounting.step_flops(config, new, cached, rows),
                "generation": [
                    accounting.generation_flops(config, new, 20, c) for c in (True, False)
                ],
                "weights": [
                    accounting.weight_count(config),
                    accounting.weight_count(replace(config, tie_embeddings=True)),
                    accounting.weight_count(huge),
                    accounting.weight_count(replace(huge, tie_embeddings=True)),
                ],
                "training": [
                    [
                        accounting.activation_count(config, checkpointed),
                        accounting.training_bytes(config, new, checkpointed).total,
                        accounting.training_bytes(config, new, checkpointed).optimizer,
                        accounting.training_flops(config, new, checkpointed),
                    ]
                    for checkpointed in (False, True)
                ],
                "moved": accounting.step_bytes(config, new, cached, size),
                "intensity": accounting.arithmetic_intensity(config, new, cached, size),
                "seconds": [
                    accounting.step_seconds(config, n, cached, *speeds, size)
                    for n in (1, new)
                    for speeds in (rates, rates[::-1])
                ],
            }
        )
    return observed


@scenario(task=5)
def logits_of_the_bundled_model(nanovllm, rng):
    import torch

    from nanovllm.model.attend import RecomputeAttend
    from nanovllm.model.loader import load_model

    folder = Path(nanovllm.__file__).resolve().parents[1] / "models" / "target"
    model = load_model(folder)
    ids = _ids(rng, model.config, 30)
    hidden = model(ids, torch.arange(30), RecomputeAttend(model.config))
    return {"logits": model.logits(hidden[-4:])}
