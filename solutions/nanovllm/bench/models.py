"""The models to measure on: the bundled one, any folder, and shapes with random weights."""

import os
from itertools import chain, islice, product
from pathlib import Path
from string import ascii_letters, digits
from typing import Any, cast

from nanovllm.llm.read_options import BUNDLED, OptionError

# Qwen3's architecture; sizes of `tiny` suit the caches of a laptop, `mid` has to be read from RAM,
# `moe` is Qwen3-MoE with 32 experts, and the last is the shape of Qwen/Qwen3-0.6B.
SIZES = {
    "tiny": {
        "vocab_size": 2048, "hidden_size": 256, "num_hidden_layers": 8, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 32, "intermediate_size": 768,
    },
    "mid": {
        "vocab_size": 32000, "hidden_size": 1024, "num_hidden_layers": 12,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 64,
        "intermediate_size": 3072,
    },
    "moe": {
        "vocab_size": 4096, "hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 1024,
        "moe_intermediate_size": 384, "num_experts": 32, "num_experts_per_tok": 4,
    },
    "qwen3-0.6b": {
        "vocab_size": 151936, "hidden_size": 1024, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
        "intermediate_size": 3072,
    },
}  # fmt: skip
CONTEXT = 512


def cache_folder() -> Path:
    """Where made models are kept: XDG_CACHE_HOME, by default ~/.cache."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "nanovllm" / "bench-models"


def model_folder(name: str) -> Path:
    """Return the folder of `bundled`, of a key of SIZES (made when first asked for) or a path."""
    if name == "bundled":
        return BUNDLED
    if name in SIZES:
        folder = cache_folder() / name
        if not (folder / "tokenizer.json").is_file():
            make_random(folder, **SIZES[name])
        return folder
    if not (Path(name) / "config.json").is_file():
        raise OptionError(
            f"model {name!r} is not bundled, {', '.join(SIZES)} or a folder with config.json."
        )
    return Path(name)


def make_random(folder: Path, **sizes: int) -> None:
    """Save a Qwen3, or a Qwen3-MoE where `sizes` has experts, made by transformers.

    Its weights are tied, random of seed 0, in bfloat16. Its tokenizer fills the vocabulary.
    """
    import torch
    import transformers

    make = transformers.Qwen3MoeConfig if "num_experts" in sizes else transformers.Qwen3Config
    config = make(
        **cast(Any, sizes), max_position_embeddings=CONTEXT, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    # tokenizer.json is written last: it marks a whole folder
    filled_tokenizer(sizes["vocab_size"]).save_pretrained(folder)


def filled_tokenizer(size: int) -> Any:
    """Byte-level BPE of `size` tokens: the bytes, pairs of letters, and pairs with a third."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[:size]
    letters = ascii_letters + digits
    pairs = list(product(letters, letters))
    triples = ((a + b, c) for (a, b), c in product(pairs, letters))
    merges = list(islice(chain(pairs, triples), size - len(alphabet)))
    tokens = [*alphabet, *map("".join, merges)]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)
