"""From training weights to a folder in Hugging Face format, and back."""

import json
import os
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from . import tokenizer as shared_tokenizer
from .corpus.spans import END_OF_TEXT, TURN_END
from .network import DRAFT, TARGET, Network, Shape

HERE = Path(__file__).parent
SHAPES = {"target": TARGET, "draft": DRAFT}


def qwen3_config(shape: Shape) -> Qwen3Config:
    """Return the same architecture as transformers describes it."""
    tokenizer = shared_tokenizer.load()
    ends = tokenizer.convert_tokens_to_ids([TURN_END, END_OF_TEXT])
    assert isinstance(ends, list)
    return Qwen3Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.E,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.L,
        num_attention_heads=shape.H,
        num_key_value_heads=shape.G,
        head_dim=shape.D,
        max_position_embeddings=shape.context,
        rms_norm_eps=shape.eps,
        rope_parameters={"rope_type": "default", "rope_theta": shape.theta},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=ends[0],
        pad_token_id=ends[1],
        dtype="bfloat16",
    )


def save_model(network: Network, folder: Path) -> None:
    """Write config, bf16 weights and tokenizer; each file appears at once, whole."""
    config = qwen3_config(network.shape)
    model = Qwen3ForCausalLM(config)
    missing, unexpected = model.load_state_dict(network.state_dict(), strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    tokenizer = shared_tokenizer.load()
    model.generation_config = GenerationConfig(
        do_sample=False,
        eos_token_id=tokenizer.convert_tokens_to_ids([TURN_END, END_OF_TEXT]),
        pad_token_id=config.pad_token_id,
    )
    partial = folder.parent / f".{folder.name}.partial"
    nn.Module.to(model, torch.bfloat16)  # transformers wraps `to` so that no type fits
    model.save_pretrained(partial)
    shared_tokenizer.copy_to(folder)
    for path in partial.iterdir():
        if path.name == "config.json":
            _add_rope_theta(path, network.shape)
        os.replace(path, folder / path.name)
    shutil.rmtree(partial)


def _add_rope_theta(path: Path, shape: Shape) -> None:
    """Say it once more at the top level, where programs before transformers 5 look for it."""
    config = json.loads(path.read_text()) | {"rope_theta": shape.theta}
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def load_network(name: str) -> Network:
    """Return a saved model as a training network, in float32 but with the rounded weights."""
    network = Network(SHAPES[name])
    weights = load_file(HERE / name / "model.safetensors")
    network.load_state_dict({key: value.float() for key, value in weights.items()})
    return network.eval()
