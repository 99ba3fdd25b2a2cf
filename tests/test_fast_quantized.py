"""Quantized models on the fast CPU path: the plain engine's texts, in every build of the step."""

from __future__ import annotations

import random
from array import array

import pytest
import torch

from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.fast import available, fast_engine
from nanovllm.fast.build import load_library
from nanovllm.fast.step import NativeStep, StepInput
from nanovllm.fast.store import FastStore
from nanovllm.fast.weights import NativeWeights
from nanovllm.generation.events import Finished
from nanovllm.generation.params import SamplingParams
from nanovllm.model.attend import RecomputeAttend
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model
from nanovllm.model.transformer import Transformer
from nanovllm.paging.store import PagedStore
from nanovllm.quantization.grid import Grid, QuantizedWeight
from nanovllm.quantization.grids import round_to_nearest
from nanovllm.quantization.grouped import GroupedLinear
from nanovllm.quantization.linear import linears, replace_linear
from nanovllm.quantization.scheme import Scheme

BIASES = {"qkv_bias": True, "output_bias": True, "mlp_bias": True}
FAMILIES = {
    "qwen3": ModelConfig("qwen3", 97, 64, 3, 4, 2, 16, 96, 160, qk_norm=True, tie_embeddings=True),
    "qwen2": ModelConfig("qwen2", 97, 64, 2, 4, 4, 16, 70, 160, qkv_bias=True),
    "llama, long rows": ModelConfig("llama", 97, 64, 2, 4, 2, 16, 1100, 160, **BIASES),
    "gpt2": ModelConfig("gpt2", 97, 64, 2, 4, 4, 16, 100, 160, tie_embeddings=True, **BIASES),
}
SCHEMES = {
    "int8 rows": Scheme(8, None, symmetric=True),
    "int8 rows, asymmetric": Scheme(8, None),
    "int8 groups": Scheme(8, 16),
    "int4 groups": Scheme(4, 32),
    "int4 groups, symmetric": Scheme(4, 8, symmetric=True),
    "int4 rows": Scheme(4, None),
    "int3 groups": Scheme(3, 64),
}
BUILDS = {
    "float32": (torch.float32, ()),
    "float32 without bytes": (torch.float32, ("-mno-avx512vnni",)),
    "float32, short vectors": (torch.float32, ("-mno-avx512f",)),
    "bfloat16": (torch.bfloat16, ()),
    "bfloat16 without bytes": (torch.bfloat16, ("-mno-avx512vnni", "-mno-avx512bf16")),
    "bfloat16, short vectors": (torch.bfloat16, ("-mno-avx512f",)),
}

if available() is not None:
    pytest.skip(f"the fast path cannot run here: {available()}", allow_module_level=True)


def quantized(config: ModelConfig, scheme: Scheme, seed: int = 0) -> Transformer:
    model = dummy_model(config, seed)
    for name, linear in list(linears(model)):
        weight = round_to_nearest(linear.weight, scheme)
        replace_linear(model, name, GroupedLinear(weight, linear.bias))
    return model


def native(model: Transformer, defines: tuple[str, ...] = ()) -> NativeStep:
    library = load_library(model.embed_tokens.weight.dtype, defines=defines)
    weights = NativeWeights(model, library.nv_lanes(), 160)
    return NativeStep(library, weights)


def forced(step: NativeStep, model: Transformer, ids: list[int], rows: int) -> torch.Tensor:
    """Logits of the last tokens, the prompt read in two chunks."""
    store = FastStore(model.config, 64, 16, model.embed_tokens.weight.dtype)
    blocks = torch.randperm(64).tolist()
    for start, end, wanted in ((0, len(ids) - rows, 1), (len(ids) - rows, len(ids), rows)):
        numbers = (ids[start:end], [0, end - start], [end], [wanted], blocks, [0])
        logits, _ = step(StepInput(*(array("i", n) for n in numbers)), store.cache)
    return logits


def plainly(model: Transformer, ids: list[int], rows: int) -> torch.Tensor:
    with torch.inference_mode():
        hidden = model(torch.tensor(ids), torch.arange(len(ids)), RecomputeAttend(model.config))
        return model.logits(hidden[-rows:])


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_logits_are_the_plain_models(scheme: str, build: str) -> None:
    dtype, defines = BUILDS[build]
    for number, (name, config) in enumerate(FAMILIES.items()):
        model = quantized(config, SCHEMES[scheme], number)
        rng = random.Random(number)
        ids = [rng.randrange(97) for _ in range(40)]
        expected = plainly(model, ids, 17)
        step = native(model.to(dtype), defines)
        found = forced(step, model, ids, 17)
        assert step.weights.widened == 0
        off = float((found - expected).abs().max() / expected.std())
        print(name, off)
        assert off < (2e-5 if dtype == torch.float32 else 0.1), name
