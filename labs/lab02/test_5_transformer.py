"""Task 5: the whole model and its weights, against transformers on random models."""

import os
from pathlib import Path

import pytest
import torch

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import transformers

from grader import expect
from nanovllm.model.attend import RecomputeAttend
from nanovllm.model.checkpoint_names import module_tensors
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model, load_model
from nanovllm.model.registry import FAMILIES

TARGET = Path(__file__).resolve().parents[2] / "models" / "target"
SHAPE = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 56,
    "max_position_embeddings": 64,
    "rms_norm_eps": 0.01,
}
GPT2 = {"vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
GPT2 |= {"bos_token_id": 0, "eos_token_id": 0}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 900.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def _pair(config, folder, generator):
    """transformers' model with weights whose logits spread, and the folder read by load_model."""
    theirs = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    for name, weight in theirs.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if weight.ndim == 1:
            noise = 0.4 * noise + (1 if name.endswith("weight") else 0)
        elif not any(part in name for part in ("embed_tokens", "wte", "wpe")):
            noise = 1.6 * noise * weight.shape[0 if "c_" in name else 1] ** -0.5
        weight.data.copy_(noise)
    theirs.eval().save_pretrained(folder)
    return theirs, load_model(folder)


@torch.no_grad()
def _theirs(model, ids):
    return model(ids[None]).logits[0]


def _check_logits(config, folder, generator, cause, told=None):
    theirs, model = _pair(config, folder, generator)
    ids = torch.randint(0, 61, (23,), generator=generator)
    hidden = model(ids, torch.arange(23), RecomputeAttend(model.config))
    expect(
        model.logits(hidden),
        _theirs(theirs, ids),
        call="model.logits(model(ids, torch.arange(23), RecomputeAttend(model.config)))",
        given={"family": model.config.family, **(told or {"ids": ids})},
        cause=cause,
    )


def _pairs(family, name, tensor):
    """What module_tensors gives, as a dict."""
    return {name: value.detach() for name, value in module_tensors(family, name, tensor)}


@pytest.mark.check(task=5, points=1, title="Names of Llama, Mistral and Qwen checkpoints")
def test_llama_names(generator):
    x = torch.randn(6, 4, generator=generator)
    for family in sorted({*FAMILIES} - {"gpt2"}):
        for name, expected in (
            ("model.embed_tokens.weight", "embed_tokens.weight"),
            ("model.layers.11.mlp.up_proj.weight", "layers.11.mlp.up_proj.weight"),
            ("model.layers.3.self_attn.q_norm.weight", "layers.3.self_attn.q_norm.weight"),
            ("model.norm.weight", "norm.weight"),
            ("model.layers.0.side_model.weight", "layers.0.side_model.weight"),
            ("lm_head.weight", "lm_head.weight"),
            ("layers.0.attn.bias", "layers.0.attn.bias"),  # a mask in GPT-2 alone
            ("layers.0.attn.masked_bias", "layers.0.attn.masked_bias"),
            ("model.rotary_emb.inv_freq.scale", "rotary_emb.inv_freq.scale"),
        ):
            expect(
                _pairs(family, name, x),
                {expected: x},
                call=f"module_tensors({family!r}, {name!r}, tensor)",
                cause="the modules of your Transformer have these names without `model.`.",
            )
    names = "model.layers.0.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"
    for name, some in zip(names, x, strict=False):
        expect(
            _pairs("llama", name, some),
            {},
            call=f"module_tensors('llama', {name!r}, tensor)",
            cause="some files store RoPE's frequencies; no module has a place for them.",
        )


@pytest.mark.check(task=5, points=2, title="Names and shapes of GPT-2 checkpoints")
def test_gpt2_names(generator):
    def random(*shape):
        return torch.randn(shape, generator=generator)

    x, wide, long = random(4, 6), random(4, 12), random(12)
    q, k, v = wide[:, :4].T, wide[:, 4:8].T, wide[:, 8:].T
    weights = {
        f"layers.10.self_attn.{a}_proj.weight": b for a, b in zip("qkv", (q, k, v), strict=True)
    }
    biases = {
        f"layers.10.self_attn.{a}_proj.bias": b for a, b in zip("qkv", long.split(4), strict=True)
    }
    cases = (
        ("wte.weight", x, {"embed_tokens.weight": x}),
        ("wpe.weight", x, {"positions.weight": x}),
        ("ln_f.bias", long, {"norm.bias": long}),
        ("h.3.ln_1.weight", long, {"layers.3.input_layernorm.weight": long}),
        ("h.3.ln_2.bias", long, {"layers.3.post_attention_layernorm.bias": long}),
        ("h.3.attn.c_proj.weight", x, {"layers.3.self_attn.o_proj.weight": x.T}),
        ("h.3.attn.c_proj.bias", long, {"layers.3.self_attn.o_proj.bias": long}),
        ("h.0.mlp.c_fc.weight", x, {"layers.0.mlp.up_proj.weight": x.T}),
        ("h.0.mlp.c_proj.weight", x, {"layers.0.mlp.down_proj.weight": x.T}),
        ("h.10.attn.c_attn.weight", wide, weights),
        ("h.10.attn.c_attn.bias", long, biases),
        ("h.3.attn.bias", torch.ones(1, 1, 5, 5), {}),
        ("h.3.attn.masked_bias", torch.tensor(-1e4), {}),
        ("lm_head.weight", x, {"lm_head.weight": x}),
        ("h.3.attn.extra.weight", x, {"h.3.attn.extra.weight": x}),
        ("h.3.side_transformer.weight", wide, {"h.3.side_transformer.weight": wide}),
    )
    for name, tensor, expected in cases:
        for full in (name, f"transformer.{name}"):
            expect(
                _pairs("gpt2", full, tensor),
                expected,
                call=f"module_tensors('gpt2', {full!r}, tensor of shape {list(tensor.shape)})",
                cause="GPT-2's linears are stored [in, out] (nn.Linear has [out, in]), c_attn "
                "holds q, k and v side by side, attn.bias is a mask, not a weight, and what is in "
                "no row of the table keeps its name.",
            )


@pytest.mark.check(task=5, points=3, title="Logits of Qwen3 and of Qwen2")
def test_qwen(tmp_path, generator):
    for config in (
        transformers.Qwen3Config(**SHAPE, head_dim=10, tie_word_embeddings=True),
        transformers.Qwen2Config(**SHAPE),
    ):
        _check_logits(
            config,
            tmp_path / config.model_type,
            generator,
            "every layer once, in order, and the last norm at the end.",
        )


@pytest.mark.check(task=5, points=2, title="Logits of Llama with its RoPE scaling")
def test_llama(tmp_path, generator):
    config = transformers.LlamaConfig(**SHAPE, rope_parameters=LLAMA3)
    cause = "the frequencies are those of self.positions, scaled as config.rope_scaling says."
    _check_logits(config, tmp_path, generator, cause)


@pytest.mark.check(task=5, points=2, title="Logits of models with sliding windows")
def test_mistral(tmp_path, generator):
    cause = "a token sees itself and the four before it, in the layers that have a window."
    config = transformers.MistralConfig(**SHAPE, sliding_window=5)
    _check_logits(config, tmp_path / "mistral", generator, cause)
    config = transformers.Qwen2Config(
        **SHAPE,
        use_sliding_window=True,
        sliding_window=5,
        layer_types=["full_attention", "sliding_attention"],
    )
    _check_logits(config, tmp_path / "qwen2", generator, cause)


@pytest.mark.check(task=5, points=2, title="Logits of GPT-2 with its learned positions")
def test_gpt2(tmp_path, generator):
    config = transformers.GPT2Config(**GPT2)
    cause = "if test_gpt2_names passes, look for self.positions.embed: it adds GPT-2's positions."
    _check_logits(config, tmp_path, generator, cause)


@pytest.mark.check(task=5, points=1, title="Rows stand at the positions given, in any order")
def test_given_positions(generator):
    # Every row sees all rows, so the order of the rows cannot matter.
    def attend(layer, q, k, v):
        k, v = (x.repeat_interleave(2, dim=1) for x in (k, v))
        weights = torch.softmax(torch.einsum("thd,shd->hts", q, k), -1)
        return torch.einsum("hts,shd->thd", weights, v)

    config = ModelConfig("qwen3", 61, 32, 2, 4, 2, 10, 56, 64, qk_norm=True)
    model = dummy_model(config, seed=int(torch.randint(0, 99, (), generator=generator)))
    ids = torch.randint(0, 61, (7,), generator=generator)
    positions = torch.tensor([9, 3, 30, 4, 5, 31, 0])
    order = torch.tensor([6, 1, 3, 4, 0, 2, 5])
    straight = model(ids, positions, attend)
    permuted = model(ids[order], positions[order], attend)
    gap = (permuted - straight[order]).abs().max().item()
    expect.that(
        gap < 1e-3,
        "the same tokens at the same positions give the same rows in any order",
        observed=gap,
        call="model(ids[order], positions[order], attend) against model(ids, positions, attend)",
        given={"positions": positions, "order": order},
        cause="use the positions given; row t does not stand at position t.",
    )


@pytest.mark.check(task=5, points=1, title="A tied model scores with its embedding")
def test_tied_logits(generator):
    for tied in (True, False):
        config = ModelConfig("llama", 61, 32, 1, 4, 2, 8, 56, 64, tie_embeddings=tied)
        model = dummy_model(config, seed=5)
        names = [name for name in model.state_dict() if not name.startswith("layers.")]
        head = [] if tied else ["lm_head.weight"]
        expect(
            sorted(names),
            ["embed_tokens.weight", *head, "norm.weight"],
            call=f"parameters outside the layers, config with tie_embeddings={tied}",
            cause="a tied model has no output matrix of its own: the embedding serves twice.",
        )
        hidden = torch.randn(3, 32, generator=generator)
        matrix = (model.embed_tokens if tied else model.lm_head).weight
        expect(
            model.logits(hidden),
            hidden @ matrix.T,
            call=f"Transformer(config with tie_embeddings={tied}).logits(hidden)",
            given={"hidden": hidden},
            cause="hidden times the transposed [V, E] matrix; the last norm belongs to the call "
            "of the model, not to logits.",
        )


def _random_config(rng):
    """A configuration of a random family, and what to tell of it when it fails."""
    groups, share = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    tied = bool(rng.random() < 0.5)
    layers = int(rng.integers(1, 5))
    family = rng.choice(["gpt2", "llama", "mistral", "qwen2", "qwen3"])
    if family == "gpt2":
        options = {
            "n_head": share,
            "n_embd": share * 2 * int(rng.integers(2, 6)),
            "n_layer": layers,
        }
        told = {**options, "n_inner": int(rng.integers(9, 40)), "tie_word_embeddings": tied}
        return transformers.GPT2Config(**{**GPT2, **told}), told
    told = {
        "hidden_size": groups * share * 2 * int(rng.integers(2, 6)),
        "num_hidden_layers": layers,
        "num_attention_heads": groups * share,
        "num_key_value_heads": groups,
        "intermediate_size": int(rng.integers(9, 40)),
        "tie_word_embeddings": tied,
    }
    theta = float(rng.integers(50, 5000))
    rope = {"rope_type": "default", "rope_theta": theta}
    if family == "llama":
        told |= {"attention_bias": bool(rng.random() < 0.5), "mlp_bias": bool(rng.random() < 0.5)}
        rope = [rope, {**LLAMA3, "factor": 2.0 + 6 * rng.random()}][int(rng.integers(2))]
    if family == "mistral":
        told["sliding_window"] = int(rng.integers(1, 20))
    if family in ("qwen2", "qwen3") and rng.random() < 0.5:
        kinds = ("sliding_attention", "full_attention")
        told |= {"use_sliding_window": True, "sliding_window": int(rng.integers(1, 9))}
        told["layer_types"] = [kinds[int(kind)] for kind in rng.integers(0, 2, layers)]
    if family == "qwen3" or (family in ("llama", "mistral") and rng.random() < 0.5):
        told["head_dim"] = 2 * int(rng.integers(2, 8))
    make = {
        "llama": transformers.LlamaConfig,
        "mistral": transformers.MistralConfig,
        "qwen2": transformers.Qwen2Config,
        "qwen3": transformers.Qwen3Config,
    }[family]
    return make(**{**SHAPE, **told, "rope_parameters": rope}), {**told, "rope": rope}


@pytest.mark.check(task=5, points=1, title="Logits of models of random shape", stress=True)
def test_random_models(tmp_path, generator, rng):
    for number in range(4):
        config, told = _random_config(rng)
        cause = "the families alone tell more: look at their cards first, then at these options."
        _check_logits(config, tmp_path / str(number), generator, cause, {"options": told})


@pytest.mark.check(task=5, points=1, title="Logits of the bundled model")
def test_bundled(generator):
    model = load_model(TARGET)
    ids = torch.randint(0, model.config.vocab_size, (40,), generator=generator)
    hidden = model(ids, torch.arange(40), RecomputeAttend(model.config))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)
    expect(
        model.logits(hidden),
        _theirs(theirs, ids),
        call="logits of models/target for 40 random tokens",
        given={"ids": ids},
        cause="the random models above tell more: look at their cards first.",
    )
