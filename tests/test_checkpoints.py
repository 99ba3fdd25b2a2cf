"""Checkpoints that transformers wrote, read and run by the engine: the same numbers come out."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from nanovllm.model.attend import RecomputeAttend
from nanovllm.model.cache import ContiguousCache, forward_cached
from nanovllm.model.config import ModelConfig
from nanovllm.model.errors import ModelFolderError
from nanovllm.model.loader import dummy_model, load_config, load_model

MODELS = Path(__file__).resolve().parent.parent / "models"
TOKENS = 41
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 700.0,
    "factor": 4.0,
    "original_max_position_embeddings": 24,
}
SLIDING = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}


def _shape(hidden=48, layers=3, heads=6, groups=2, inner=80, vocab=97, **more):
    return {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "intermediate_size": inner,
        "max_position_embeddings": 128,
        **more,
    }


def _theta(theta):
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta}}


CASES = {
    "qwen3": lambda: transformers.Qwen3Config(**_shape(head_dim=8, **_theta(100.0))),
    "qwen3-head-dim-not-E/H": lambda: transformers.Qwen3Config(
        **_shape(head_dim=22, rms_norm_eps=0.05, tie_word_embeddings=True)
    ),
    "qwen3-head-dim-unset": lambda: transformers.Qwen3Config(**_shape(heads=2, groups=1)),
    "qwen3-bias": lambda: transformers.Qwen3Config(**_shape(head_dim=10, attention_bias=True)),
    "qwen3-sliding": lambda: transformers.Qwen3Config(**_shape(head_dim=12, **SLIDING)),
    "qwen2-tied": lambda: transformers.Qwen2Config(
        **_shape(tie_word_embeddings=True, **_theta(1e6))
    ),
    "qwen2-one-kv-head": lambda: transformers.Qwen2Config(**_shape(groups=1)),
    "qwen2-max-window-layers": lambda: transformers.Qwen2Config(**_shape(layers=4, **SLIDING)),
    "qwen2-layer-types": lambda: transformers.Qwen2Config(
        **_shape(
            use_sliding_window=True,
            sliding_window=4,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        )
    ),
    "qwen2-window-not-used": lambda: transformers.Qwen2Config(
        **_shape(use_sliding_window=False, sliding_window=3, max_window_layers=0)
    ),
    "llama": lambda: transformers.LlamaConfig(**_shape(vocab=131)),
    "llama-H=G": lambda: transformers.LlamaConfig(**_shape(groups=6, **_theta(33.0))),
    "llama-head-dim": lambda: transformers.LlamaConfig(**_shape(heads=4, head_dim=20)),
    "llama-biases-tied": lambda: transformers.LlamaConfig(
        **_shape(attention_bias=True, mlp_bias=True, tie_word_embeddings=True)
    ),
    "llama-llama3": lambda: transformers.LlamaConfig(
        **_shape(head_dim=24, rope_parameters=dict(LLAMA3))
    ),
    "llama-linear": lambda: transformers.LlamaConfig(
        **_shape(rope_parameters={"rope_type": "linear", "factor": 3.0, "rope_theta": 90.0})
    ),
    "llama-yarn": lambda: transformers.LlamaConfig(
        **_shape(head_dim=24, rope_parameters=dict(YARN))
    ),
    "llama-yarn-untruncated": lambda: transformers.LlamaConfig(
        **_shape(
            head_dim=32,
            rope_parameters={**YARN, "truncate": False, "beta_fast": 8.0, "beta_slow": 0.5},
        )
    ),
    "qwen3-yarn-attention-factor": lambda: transformers.Qwen3Config(
        **_shape(head_dim=16, rope_parameters={**YARN, "attention_factor": 1.5})
    ),
    "mistral-sliding": lambda: transformers.MistralConfig(**_shape(sliding_window=7)),
    "mistral-window-1": lambda: transformers.MistralConfig(**_shape(sliding_window=1)),
    "mistral-no-window": lambda: transformers.MistralConfig(
        **_shape(head_dim=14, sliding_window=None)
    ),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=97, n_embd=48, n_layer=3, n_head=4, n_positions=64
    ),
    "gpt2-inner-untied": lambda: transformers.GPT2Config(
        vocab_size=97,
        n_embd=40,
        n_layer=2,
        n_head=5,
        n_inner=72,
        n_positions=64,
        layer_norm_epsilon=0.1,
        tie_word_embeddings=False,
    ),
}


def _spread(model, seed):
    """Weights large enough that logits differ by many units and attention is not uniform."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        norm = "norm" in name or "ln_" in name
        if norm and name.endswith("weight"):
            noise = 1 + 0.3 * noise
        elif weight.ndim == 1:
            noise = 0.5 * noise
        elif not any(part in name for part in ("embed_tokens", "wte", "wpe")):
            fan_in = weight.shape[0 if "c_" in name else 1]
            noise = 2.0 * noise * fan_in**-0.5
        weight.data.copy_(noise)


def _build(name, folder, **save):
    config = CASES[name]()
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    _spread(model, seed=len(name))
    model.eval().save_pretrained(folder, **save)
    return model


def _ids(vocab, seed=0):
    return torch.randint(0, vocab, (TOKENS,), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def _theirs(model, ids):
    return model(ids[None]).logits[0]


def _ours(model, ids):
    hidden = model(ids, torch.arange(len(ids)), RecomputeAttend(model.config))
    return model.logits(hidden)


def _difference(actual, expected):
    return ((actual - expected).abs().max() / expected.abs().max()).item()


@pytest.mark.parametrize("name", CASES)
def test_logits_equal_those_of_transformers(name, tmp_path):
    reference = _build(name, tmp_path)
    model = load_model(tmp_path)
    ids = _ids(model.config.vocab_size)
    expected = _theirs(reference, ids)
    assert expected.std() > 1, "the logits must spread, or a wrong model looks right"
    assert _difference(_ours(model, ids), expected) < 1e-4


@pytest.mark.parametrize("name", CASES)
@pytest.mark.few(3)
def test_any_chunks_through_the_cache_equal_recompute(name, tmp_path):
    _build(name, tmp_path)
    model = load_model(tmp_path)
    ids = _ids(model.config.vocab_size, seed=1)
    expected = _ours(model, ids)
    for chunks in ([1] * TOKENS, [TOKENS], [7, 1, 16, 2, 1, 1, 13], [40, 1], [1, 40]):
        cache = ContiguousCache(model.config, capacity=TOKENS)
        hidden = [forward_cached(model, cache, part) for part in ids.split(chunks)]
        assert _difference(model.logits(torch.cat(hidden)), expected) < 1e-4, chunks


@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt2"])
def test_shards_and_bfloat16(name, tmp_path):
    folder = tmp_path / "shards"
    _build(name, tmp_path).to(torch.bfloat16).save_pretrained(folder, max_shard_size="30KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    ids = _ids(97)
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 0.1)):
        reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        logits = _ours(load_model(folder, dtype=dtype), ids)
        assert logits.dtype == dtype
        assert _difference(logits.float(), _theirs(reference, ids).float()) < tolerance


def test_rope_of_transformers_4_files(tmp_path):
    """`rope_theta` and `rope_scaling` at the top level, `type` for `rope_type`."""
    reference = _build("llama-llama3", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = {**rope, "type": rope.pop("rope_type")}
    config["rope_scaling"].pop("rope_type")
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = load_model(tmp_path)
    assert (model.config.rope_theta, model.config.rope_scaling.kind) == (500.0, "llama3")
    ids = _ids(model.config.vocab_size)
    assert _difference(_ours(model, ids), _theirs(reference, ids)) < 1e-4


def test_gpt2_without_prefix_and_with_mask_buffers(tmp_path):
    """The file that OpenAI's GPT-2 has on the hub."""
    reference = _build("gpt2", tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights = {name.removeprefix("transformer."): value for name, value in weights.items()}
    for layer in range(3):
        weights[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 64, 64)
    save_file(weights, tmp_path / "model.safetensors")
    ids = _ids(97)
    assert _difference(_ours(load_model(tmp_path), ids), _theirs(reference, ids)) < 1e-4


def test_layer_windows_are_those_of_the_config(tmp_path):
    _build("qwen2-layer-types", tmp_path)
    config = load_config(tmp_path)
    assert config.windows == (4, None, 4)
    assert [config.window(layer) for layer in range(3)] == [4, None, 4]


def test_end_of_sequence_ids_of_both_files(tmp_path):
    _build("llama", tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 2, 9]}')
    assert load_config(tmp_path).eos_token_ids == (2, 7, 9)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
def test_dummy_models_spread_their_logits(family):
    config = ModelConfig(
        family, 97, 32, 2, 4, 4 if family == "gpt2" else 2, 8, 64, 128, qk_norm=family == "qwen3"
    )
    model = dummy_model(config, seed=3)
    logits = _ours(model, _ids(97))
    assert logits.std() > 0.5
    assert logits.equal(_ours(dummy_model(config, seed=3), _ids(97)))
    assert len(set(logits.argmax(-1).tolist())) > 8


@pytest.mark.parametrize("name", ["target", "draft"])
def test_greedy_text_of_the_bundled_models(name):
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODELS / name)
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        MODELS / name, dtype=torch.float32
    )
    model = load_model(MODELS / name)
    for prompt in ("Once upon a time", "Mia's code is 7342. What is Mia's code?", "3 + 4 ="):
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        expected = reference.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=48
        )[0, ids.shape[1] :].tolist()
        cache = ContiguousCache(model.config, ids.shape[1] + 48)
        hidden = forward_cached(model, cache, ids[0])
        tokens: list[int] = []
        while len(tokens) < 48 and not (tokens and tokens[-1] in model.config.eos_token_ids):
            tokens.append(int(model.logits(hidden[-1:]).argmax()))
            hidden = forward_cached(model, cache, torch.tensor(tokens[-1:]))
        assert tokenizer.decode(tokens) == tokenizer.decode(expected)
        assert tokens == expected


# A folder that cannot be used gives one sentence: what is wrong, and what to do.


def _edit(folder, **changes):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for key, value in changes.items():
        config.pop(key, None)
        if value is not ...:
            config[key] = value
    path.write_text(json.dumps(config))


def _edit_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


def _truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def _rope(kind):
    return {"rope_type": kind, "rope_theta": 1e4, "factor": 2.0}


BROKEN = {
    "no config": (lambda f: (f / "config.json").unlink(), "config.json is missing"),
    "config not JSON": (lambda f: (f / "config.json").write_text("{"), "not valid JSON"),
    "config a list": (lambda f: (f / "config.json").write_text("[]"), "an object is expected"),
    "unknown family": (lambda f: _edit(f, model_type="mamba"), "'mamba'.*choose.*llama, mistral"),
    "no family": (lambda f: _edit(f, model_type=...), "family None"),
    "missing key": (lambda f: _edit(f, hidden_size=...), "no 'hidden_size'"),
    "size of the wrong type": (lambda f: _edit(f, hidden_size="big"), "cannot be used"),
    "heads not in groups": (lambda f: _edit(f, num_key_value_heads=4), "multiple of num_kv_heads"),
    "unknown activation": (lambda f: _edit(f, hidden_act="relu"), "activation 'relu'"),
    "unsupported RoPE": (lambda f: _edit(f, rope_parameters=_rope("longrope")), "'longrope'"),
    "dynamic RoPE": (lambda f: _edit(f, rope_parameters=_rope("dynamic")), "'dynamic'"),
    "RoPE without factor": (
        lambda f: _edit(f, rope_parameters={"rope_type": "linear"}),
        "no 'factor'",
    ),
    "partial rotation": (
        lambda f: _edit(f, rope_parameters={**_rope("default"), "partial_rotary_factor": 0.5}),
        "part of each head",
    ),
    "quantized": (lambda f: _edit(f, quantization_config={"bits": 4}), "unquantized"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "no weights that"),
    "pickled weights": (
        lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
        "only pytorch_model",
    ),
    "weights cut short": (lambda f: _truncate(f / "model.safetensors"), "cut short"),
    "weights empty": (lambda f: (f / "model.safetensors").write_bytes(b""), "cut short"),
    "weights are a pointer file": (
        lambda f: (f / "model.safetensors").write_text("version https://git-lfs.github.com"),
        "cut short",
    ),
    "missing tensor": (
        lambda f: _edit_weights(f, lambda w: w.pop("model.layers.1.mlp.up_proj.weight")),
        "lack the tensor for layers.1.mlp.up_proj.weight",
    ),
    "missing head": (
        lambda f: _edit_weights(f, lambda w: w.pop("lm_head.weight")),
        "lack the tensor for lm_head.weight",
    ),
    "extra tensor": (
        lambda f: _edit_weights(
            f, lambda w: w.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(48)})
        ),
        "no place for.*layers.0.self_attn.q_proj.bias",
    ),
    "wrong shape": (lambda f: _edit(f, intermediate_size=81), r"\[80, 48\].*asks for \[81, 48\]"),
    "more layers in the config": (lambda f: _edit(f, num_hidden_layers=4), "layers.3"),
    "index not JSON": (
        lambda f: (f / "model.safetensors.index.json").write_text("{}"),
        "not an index of shards",
    ),
    "missing shard": (
        lambda f: (f / "model.safetensors.index.json").write_text(
            '{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model.safetensors"}}'
        ),
        "lacks 1 of 2 weight files.*model-00001-of-00002",
    ),
}


@pytest.fixture(scope="module")
def llama_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    _build("llama", folder)
    return folder


@pytest.mark.parametrize("case", BROKEN)
def test_broken_folders_say_so_in_one_sentence(case, llama_folder, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(llama_folder, folder)
    spoil, pattern = BROKEN[case]
    spoil(folder)
    with pytest.raises(ModelFolderError, match=pattern) as caught:
        load_model(folder)
    sentence = str(caught.value)
    assert sentence.endswith(".") and "\n" not in sentence and len(sentence) < 600
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_shards_without_an_index(llama_folder, tmp_path):
    shutil.copytree(llama_folder, tmp_path / "model")
    whole = tmp_path / "model" / "model.safetensors"
    shutil.copy(whole, tmp_path / "model" / "model-00001-of-00002.safetensors")
    whole.rename(tmp_path / "model" / "model-00002-of-00002.safetensors")
    with pytest.raises(ModelFolderError, match=r"no model\.safetensors\.index\.json"):
        load_model(tmp_path / "model")


def test_names_that_are_not_cached_while_offline(tmp_path):
    """In a process of its own: huggingface_hub reads HF_HUB_OFFLINE when it is imported."""
    names = ["some-owner/not-in-the-cache", "nowhere", "/no/such/folder", "./missing", "a b", ""]
    code = (
        "import sys\n"
        "from nanovllm.model.errors import ModelFolderError\n"
        "from nanovllm.model.loader import load_model\n"
        "for name in sys.argv[1:]:\n"
        "    try:\n        load_model(name)\n"
        "    except ModelFolderError as error:\n        print(repr(str(error)))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, *names],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)},
        cwd=MODELS.parent,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    assert len(run.stdout.splitlines()) == len(names)
    for said in run.stdout.splitlines():
        assert "there is no folder" in said and "name a local folder" in said


def test_a_cached_hub_name_loads_while_offline(llama_folder, tmp_path):
    snapshot = tmp_path / "hub" / "models--owner--tiny" / "snapshots" / ("0" * 40)
    shutil.copytree(llama_folder, snapshot)
    refs = snapshot.parent.parent / "refs"
    refs.mkdir()
    (refs / "main").write_text("0" * 40)
    code = "from nanovllm.model.loader import load_model; print(load_model('owner/tiny').config)"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)},
        cwd=MODELS.parent,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "family='llama'" in run.stdout, run.stderr
