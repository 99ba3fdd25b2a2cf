"""A model of random weights in a folder, written by transformers, with the bundled tokenizer."""

import shutil
from pathlib import Path
from typing import Any

import torch
import transformers

TARGET = Path(__file__).parent.parent / "models" / "target"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
SMALL = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 96,
}


def save_random(
    folder: Path,
    make: type[transformers.PreTrainedConfig] = transformers.Qwen3Config,
    std: float = 0.2,
    vocab: int | None = None,
    **options: Any,
) -> transformers.PreTrainedModel:
    """Save and return a model whose weights are far enough apart that its greedy text varies.

    vocab: the size of another vocabulary than the bundled one, whose files are not saved then.
    """
    bundled = TOKENIZER_FILES if vocab is None else ()
    vocab = vocab or len(transformers.AutoTokenizer.from_pretrained(TARGET))
    config = make(vocab_size=vocab, bos_token_id=None, eos_token_id=2, **options)
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=std).add_(1.0 if weight.dim() == 1 else 0.0)
    model.save_pretrained(folder)
    for name in bundled:
        if (TARGET / name).is_file():
            shutil.copy(TARGET / name, folder)
    return model
