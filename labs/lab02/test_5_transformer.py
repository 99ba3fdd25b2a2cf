"""Task 5: the whole model, against transformers on random weights and on the bundled model."""

import os
from pathlib import Path

import pytest
import torch

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import transformers

from grader import expect
from nanovllm.model.attention import RecomputeAttend
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model, load_model

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


def _check_logits(config, folder, generator, cause):
    theirs, model = _pair(config, folder, generator)
    ids = torch.randint(0, 61, (23,), generator=generator)
    hidden = model(ids, torch.arange(23), RecomputeAttend(model.config))
    expect(
        model.logits(hidden),
        _theirs(theirs, ids),
        call="model.logits(model(ids, torch.arange(23), RecomputeAttend(model.config)))",
        given={"family": model.config.family, "ids": ids},
        cause=cause,
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


@pytest.mark.check(task=5, points=2, title="Logits of Mistral with its sliding window")
def test_mistral(tmp_path, generator):
    config = transformers.MistralConfig(**SHAPE, sliding_window=5)
    _check_logits(config, tmp_path, generator, "a token sees itself and the four before it.")


@pytest.mark.check(task=5, points=2, title="Logits of GPT-2 with its learned positions")
def test_gpt2(tmp_path, generator):
    config = transformers.GPT2Config(
        vocab_size=61,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=64,
        bos_token_id=0,
        eos_token_id=0,
    )
    cause = "call self.positions.embed on the embedding: GPT-2 adds its positions there."
    _check_logits(config, tmp_path, generator, cause)


@pytest.mark.check(task=5, points=2, title="Rows stand at the positions given, in any order")
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


@pytest.mark.check(task=5, points=2, title="A tied model scores with its embedding")
def test_tied_logits(generator):
    for tied in (True, False):
        config = ModelConfig("llama", 61, 32, 1, 4, 2, 8, 56, 64, tie_embeddings=tied)
        model = dummy_model(config, seed=5)
        hidden = torch.randn(3, 32, generator=generator)
        matrix = (model.embed_tokens if tied else model.lm_head).weight
        expect(
            model.logits(hidden),
            hidden @ matrix.T,
            call=f"Transformer(config with tie_embeddings={tied}).logits(hidden)",
            given={"hidden": hidden},
            cause="hidden times the transposed [V, E] matrix; forward has applied the last norm.",
        )


@pytest.mark.check(task=5, points=2, title="Logits of the bundled model")
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
