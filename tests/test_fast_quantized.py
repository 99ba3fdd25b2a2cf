"""Quantized models on the fast CPU path: the plain engine's texts, in every build of the step."""

from __future__ import annotations

import platform
import random
from array import array
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.events import EngineEvent, Stepped
from nanovllm.fast import available, fast_engine
from nanovllm.fast.build import load_library
from nanovllm.fast.engine import FastEngine
from nanovllm.fast.step import NativeStep, StepInput
from nanovllm.fast.store import FastStore
from nanovllm.fast.weights import NativeWeights
from nanovllm.generation.events import Finished
from nanovllm.generation.params import SamplingParams
from nanovllm.llm.guessing import Guessing
from nanovllm.model.attend import RecomputeAttend
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model
from nanovllm.model.transformer import Transformer
from nanovllm.paging.batch import make_batch
from nanovllm.paging.block_table import BlockTable
from nanovllm.paging.store import PagedStore
from nanovllm.quantization.grid import QuantizedWeight
from nanovllm.quantization.grids import round_to_nearest
from nanovllm.quantization.grouped import GroupedLinear
from nanovllm.quantization.int8_activations import Int8Linear
from nanovllm.quantization.kv_store import QuantizedStore
from nanovllm.quantization.linear import linears, replace_linear
from nanovllm.quantization.scheme import Scheme
from nanovllm.speculative.config import SpeculativeConfig
from tests.native_builds import TILES

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
ACTIVATIONS = {"int8 activations": None}
BUILDS = {
    "float32": (torch.float32, ()),
    "bfloat16": (torch.bfloat16, ()),
}
OLDER = {  # of x86
    "float32 without bytes": (torch.float32, ("-mno-avx512vnni",)),
    "float32, short vectors": (torch.float32, ("-mno-avx512f",)),
    "bfloat16 without bytes": (torch.bfloat16, ("-mno-avx512vnni", "-mno-avx512bf16")),
    "bfloat16, short vectors": (torch.bfloat16, ("-mno-avx512f",)),
}

if platform.machine() == "x86_64":
    BUILDS |= OLDER
BUILD_CASES = [  # those of other processors are compiled here for these tests alone
    pytest.param(name, marks=[pytest.mark.proof] if defines else [])
    for name, (_, defines) in BUILDS.items()
]

WITH_CODES = FAMILIES | {
    "mistral, a window": ModelConfig("mistral", 97, 64, 2, 4, 2, 20, 96, 160, windows=(7, None)),
    "llama, many heads": ModelConfig("llama", 97, 64, 2, 26, 2, 6, 96, 160, **BIASES),
}

if available() is not None:
    pytest.skip(f"the fast path cannot run here: {available()}", allow_module_level=True)


def quantized(config: ModelConfig, scheme: Scheme | None, seed: int = 0) -> Transformer:
    """scheme: None for int8 activations, too."""
    model = dummy_model(config, seed)
    made = GroupedLinear if scheme else Int8Linear
    for name, linear in list(linears(model)):
        weight = round_to_nearest(linear.weight, scheme or SCHEMES["int8 rows"])
        replace_linear(model, name, made(weight, linear.bias))
    return model


def native(model: Transformer, defines: tuple[str, ...] = ()) -> NativeStep:
    library = load_library(model.embed_tokens.weight.dtype, defines=defines)
    weights = NativeWeights(model, library.nv_lanes(), 160)
    return NativeStep(library, weights)


def forced(
    step: NativeStep, model: Transformer, ids: list[int], rows: int, kv_cache_dtype: str = "auto"
) -> torch.Tensor:
    """Logits of the last tokens, the prompt read in two chunks."""
    dtype = model.embed_tokens.weight.dtype
    store = FastStore(model.config, 64, 16, dtype, kv_cache_dtype=kv_cache_dtype)
    blocks = torch.randperm(64).tolist()
    for start, end, wanted in ((0, len(ids) - rows, 1), (len(ids) - rows, len(ids), rows)):
        numbers = (ids[start:end], [0, end - start], [end], [wanted], blocks, [0])
        logits, _ = step(StepInput(*(array("i", n) for n in numbers)), store.cache)
    return logits


# How far logits may be from those that the same weights give in float64, by their standard
# deviation. In bfloat16 the largest seen was 0.07 (0.13 in torch's own operations), of 280 runs;
# 0.11 (0.17) where activations, K or V become codes, and one at a tie may get another.
FURTHEST = {torch.float32: 2e-5, torch.bfloat16: 0.1}
FURTHEST_AT_TIES = 0.15


def exact(model: Transformer) -> Transformer:
    """The same weights in float64."""
    return deepcopy(model).double()


def plainly(model: Transformer, ids: list[int], rows: int) -> torch.Tensor:
    with torch.inference_mode():
        hidden = model(torch.tensor(ids), torch.arange(len(ids)), RecomputeAttend(model.config))
        return model.logits(hidden[-rows:])


@pytest.mark.parametrize("build", BUILD_CASES)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.few(4)
def test_logits_are_the_plain_models(scheme: str, build: str) -> None:
    dtype, defines = BUILDS[build]
    for number, (name, config) in enumerate(FAMILIES.items()):
        model = quantized(config, SCHEMES[scheme], number).to(dtype)
        rng = random.Random(number)
        ids = [rng.randrange(97) for _ in range(40)]
        expected = plainly(exact(model), ids, 17)
        step = native(model, defines)
        found = forced(step, model, ids, 17)
        assert step.weights.widened == 0
        off = float((found - expected).abs().max() / expected.std())
        assert off < FURTHEST[dtype], name


def prompts_of_one(step: NativeStep, model: Transformer, ids: list[int]) -> torch.Tensor:
    """Logits [N, V] behind each of these tokens alone, in one step."""
    store = FastStore(model.config, len(ids), 16, model.embed_tokens.weight.dtype)
    count = len(ids)
    numbers = (ids, range(count + 1), [1] * count, [1] * count, range(count), range(count))
    logits, _ = step(StepInput(*(array("i", n) for n in numbers)), store.cache)
    return logits


@pytest.mark.parametrize("build", BUILD_CASES)
@pytest.mark.few(2)
def test_int8_activations_are_the_plain_models(build: str) -> None:
    """A value in the middle between two codes may get either, so not every row has to be equal."""
    dtype, defines = BUILDS[build]
    for name, config in FAMILIES.items():
        model, ids = quantized(replace(config, num_layers=1), None).to(dtype), list(range(97))
        reference = exact(model)
        expected = torch.cat([plainly(reference, [token], 1) for token in ids])
        step = native(model, defines)
        found = prompts_of_one(step, model, ids)
        assert step.weights.widened == 0
        off = (found - expected).abs().amax(dim=1) / expected.std()
        if dtype == torch.float32:
            assert (off < FURTHEST[dtype]).float().mean() > 0.9, name
        assert off.max() < FURTHEST_AT_TIES, name


@pytest.mark.parametrize(
    "build", sorted({"float32", "bfloat16", "float32 without bytes"} & BUILDS.keys())
)
@pytest.mark.parametrize("scheme", SCHEMES | ACTIVATIONS)
@pytest.mark.few(6)
def test_no_token_depends_on_the_others_of_its_step(scheme: str, build: str) -> None:
    """Bit for bit, and a row that is NaN stays alone."""
    dtype, defines = BUILDS[build]
    model = quantized(FAMILIES["qwen2"], (SCHEMES | ACTIVATIONS)[scheme])
    model.embed_tokens.weight[5] = torch.nan
    step = native(model.to(dtype), defines)
    ids = [token for token in range(70) if token != 5]
    one = torch.cat([prompts_of_one(step, model, [token]) for token in ids])
    assert torch.equal(prompts_of_one(step, model, ids), one)
    with_nan = prompts_of_one(step, model, [*ids[:3], 5, *ids[3:]])
    assert with_nan[3].isnan().all()
    assert torch.equal(with_nan[[i for i in range(70) if i != 3]], one)


@pytest.mark.parametrize("defines", [pytest.param((), id="own"), pytest.param(TILES, id="tiles")])
@pytest.mark.parametrize("scheme", ["int8 rows", "int8 rows, asymmetric", "int8 activations"])
@pytest.mark.few(3)
def test_tiles_of_codes_have_the_sums_that_one_row_has(
    scheme: str, defines: tuple[str, ...]
) -> None:
    """Rows of 64, 512 and 1088 values, the last in several blocks; tiles that are not full."""
    config = replace(FAMILIES["qwen2"], num_heads=32, intermediate_size=1088)
    model = quantized(config, (SCHEMES | ACTIVATIONS)[scheme]).to(torch.bfloat16)
    step, ids = native(model, defines), list(range(70))
    one = torch.cat([prompts_of_one(step, model, [token]) for token in ids])
    assert one.isfinite().all()
    for count in (5, 16, 17, 31, 33, 70):
        assert torch.equal(prompts_of_one(step, model, ids[:count]), one[:count])


def run(
    engine: Engine, jobs: list[tuple[list[int], int]], seen: list[EngineEvent] | None = None
) -> dict[int, tuple[int, ...]]:
    """The tokens of each job; `seen` gets all events."""
    tokens, seen = {}, [] if seen is None else seen
    for number, (prompt, count) in enumerate(jobs):
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
        engine.add_request(prompt, params, request_id=number)
    while engine.has_unfinished:
        for event in engine.step():
            seen.append(event)
            if isinstance(event, Finished):
                tokens[event.request_id] = event.completion.token_ids
        engine.check()
    return tokens


@pytest.mark.parametrize("scheme", ["int8 rows", "int4 groups", "int8 activations"])
@pytest.mark.few(1)
def test_texts_under_preemption_are_the_plain_engines(scheme: str) -> None:
    model = quantized(FAMILIES["qwen3"], (SCHEMES | ACTIVATIONS)[scheme], 3)
    rng = random.Random(3)
    jobs = [([rng.randrange(97) for _ in range(rng.randint(1, 50))], 20) for _ in range(6)]
    config = EngineConfig(max_num_seqs=4, max_num_batched_tokens=32)
    fast = fast_engine(model, config, num_blocks=8)
    assert fast.wait()
    found = run(fast, jobs)
    roomy = fast_engine(model, EngineConfig(max_num_seqs=6), num_blocks=60)
    assert roomy.wait()
    assert run(roomy, jobs) == found
    if scheme in SCHEMES:
        plain = Engine(model, config, store=PagedStore(model.config, 8))
        assert run(plain, jobs) == found


def test_what_the_step_does_not_read_is_widened() -> None:
    """Groups out of order, of an odd size, and not alike in q, k and v."""
    model = quantized(FAMILIES["qwen3"], Scheme(4, 16))
    changed = dict(linears(model))
    shuffled = changed["layers.0.self_attn.o_proj"].weight_codes
    grid = replace(shuffled.grid, group_of=shuffled.grid.group_of.flip(0))
    replace_linear(
        model, "layers.0.self_attn.o_proj", GroupedLinear(QuantizedWeight(shuffled.codes, grid))
    )
    for name, size in (("layers.1.mlp.down_proj", 12), ("layers.2.self_attn.q_proj", 32)):
        weight = round_to_nearest(changed[name].dequantize(), Scheme(4, size))
        replace_linear(model, name, GroupedLinear(weight))
    ids = [random.Random(1).randrange(97) for _ in range(30)]
    expected, step = plainly(model, ids, 9), native(model)
    assert (step.weights.quantized, step.weights.widened) == (16, 5)
    assert (forced(step, model, ids, 9) - expected).abs().max() < 2e-5 * expected.std()
    said: list[str] = []
    assert FastEngine(model, EngineConfig(), num_blocks=9, notify=said.append).wait()
    assert "5 of 21 quantized linears are kept in float32" in said[-1]


def test_scales_of_32_bits_keep_them() -> None:
    """Only where the zero points are one number; else there is no place for these."""
    for symmetric, widened in ((True, 0), (False, 21)):
        model = quantized(FAMILIES["qwen3"], Scheme(8, 16, symmetric=symmetric))
        for _, linear in linears(model):
            linear.scales = linear.scales.float() * (1 + 1e-4)
        ids = [random.Random(2).randrange(97) for _ in range(30)]
        expected, step = plainly(model, ids, 9), native(model)
        assert step.weights.widened == widened
        assert (forced(step, model, ids, 9) - expected).abs().max() < 2e-5 * expected.std()


def over_codes(model: Transformer, ids: list[int], rows: int) -> torch.Tensor:
    """Logits of the last tokens, K and V in lab 09's own int8 cache."""
    dtype = model.embed_tokens.weight.dtype
    store = QuantizedStore(model.config, kind="int8", num_blocks=16, dtype=dtype)
    batch = make_batch([(BlockTable(16, list(range(16))), 0, len(ids))], "cpu")
    with torch.inference_mode():
        hidden = model(torch.tensor(ids), torch.arange(len(ids)), store.attend(batch))
        return model.logits(hidden[-rows:])


@pytest.mark.parametrize("build", BUILD_CASES)
@pytest.mark.parametrize("name", WITH_CODES)
@pytest.mark.few(3)
def test_logits_over_int8_k_and_v_are_the_plain_models(name: str, build: str) -> None:
    """A value in the middle between two codes may get either: not every row has to be equal."""
    (dtype, defines), config = BUILDS[build], WITH_CODES[name]
    off = []
    for seed in range(8):
        model = dummy_model(config, seed, dtype)
        rng = random.Random(seed)
        ids = [rng.randrange(97) for _ in range(rng.randint(20, 120))]
        expected = over_codes(exact(model), ids, 17)
        found = forced(native(model, defines), model, ids, 17, "int8")
        off.append((found - expected).abs().amax(dim=1) / expected.std())
    off = torch.cat(off)
    assert off.median() < FURTHEST[dtype] / 2
    assert off.max() < FURTHEST_AT_TIES


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", WITH_CODES)
@pytest.mark.few(3)
def test_texts_over_int8_k_and_v_do_not_depend_on_chunks_or_room(
    name: str, dtype: torch.dtype
) -> None:
    model = dummy_model(WITH_CODES[name], 3, dtype)
    rng = random.Random(3)
    shared = [rng.randrange(97) for _ in range(40)]
    jobs = [(shared[: rng.choice([0, 33])] + [rng.randrange(97)] * 9, 20) for _ in range(8)]
    texts = []
    for chunk, blocks, size, budget in ((None, 60, 16, 64), (5, 9, 16, 24), (1, 6, 32, 8)):
        config = EngineConfig(max_num_seqs=4, max_num_batched_tokens=budget, max_chunk=chunk)
        fast = FastEngine(model, config, num_blocks=blocks, block_size=size, kv_cache_dtype="int8")
        assert fast.wait()
        texts.append(run(fast, jobs))
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_over_int8_v_fit_into_a_block_of_any_size(dtype: torch.dtype) -> None:
    """Whole numbers are added for 512 positions at most: more of the largest ones overflow."""
    count = 69_000
    model = dummy_model(ModelConfig("llama", 97, 32, 1, 1, 1, 32, 48, count), 0, dtype)
    model.layers[0].self_attn.k_proj.weight.zero_()  # so all positions count the same
    library = load_library(dtype)
    step, found = NativeStep(library, NativeWeights(model, library.nv_lanes(), count)), []
    for size in (512, 512 * 136):
        blocks = 512 * 136 // size
        cache = FastStore(model.config, blocks, size, dtype, kv_cache_dtype="int8").cache
        cache.v.fill_(127)
        cache.v_scales.fill_(1.0)
        numbers = ([5], [0, 1], [count], [1], list(range(blocks)), [0])
        found.append(step(StepInput(*(array("i", n) for n in numbers)), cache)[0])
    assert torch.equal(found[0], found[1])


def test_the_switch_to_native_steps_over_int8_k_and_v(monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes that the plain steps wrote are read by the native ones."""
    model = dummy_model(FAMILIES["qwen3"], 5)
    config = EngineConfig(max_num_seqs=4, max_num_batched_tokens=32)
    jobs = [([number + 1] * 30, 20) for number in range(6)]
    store = QuantizedStore(model.config, kind="int8", num_blocks=30)
    expected = run(Engine(model, config, store=store), jobs)
    fast = FastEngine(model, config, num_blocks=30, kv_cache_dtype="int8")
    assert fast.wait()
    native, schedule, calls = fast._native, fast.scheduler.schedule, []

    def switching() -> object:
        calls.append(None)
        fast._native = native if len(calls) > 15 else None
        return schedule()

    monkeypatch.setattr(fast.scheduler, "schedule", switching)
    assert run(fast, jobs) == expected
    assert len(calls) > 20


@pytest.mark.parametrize("scheme", ["int4 groups", "int8 activations"])
def test_guesses_are_the_tokens_of_single_steps(scheme: str) -> None:
    """As lab 08's draft is run, also over K and V in codes."""
    model = quantized(FAMILIES["qwen3"], (SCHEMES | ACTIVATIONS)[scheme])
    step, prompt, drawn = native(model), [3, 1, 4, 1, 5], []
    stores = [FastStore(model.config, 4, 16, torch.float32, kv_cache_dtype="int8") for _ in "ab"]
    given = (prompt, [0, 5], [5], [1], range(4), [0])
    [guesses] = step.guess(StepInput(*(array("i", n) for n in given)), stores[0].cache, [6])
    new = prompt
    for end in range(5, 11):
        given = (new, [0, len(new)], [end], [1], range(4), [0])
        _, (token,) = step(StepInput(*(array("i", n) for n in given)), stores[1].cache)
        drawn.append(token)
        new = [token]
    assert list(guesses) == drawn


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
@pytest.mark.parametrize("drafts", [False, True], ids=["ngram", "draft"])
@pytest.mark.parametrize("scheme", ["int8 rows", "int4 groups", "int8 activations"])
@pytest.mark.few(4)
def test_texts_with_guesses_are_those_without(
    scheme: str, drafts: bool, kv_cache_dtype: str
) -> None:
    """Int8 activations, too: in the compiled step no token depends on the others."""
    model = quantized(FAMILIES["qwen3"], (SCHEMES | ACTIVATIONS)[scheme], 3)
    config = EngineConfig(max_num_seqs=3, max_num_batched_tokens=32)
    guesses = Guessing(SpeculativeConfig(method="ngram"), None)
    if drafts:
        draft = quantized(FAMILIES["qwen3"], SCHEMES["int3 groups"], 3)
        asked = SpeculativeConfig(method="draft_model", model="the draft")
        guesses = Guessing(asked, lambda: FastEngine(draft, config, num_blocks=40))
    jobs = [([3, 1, 4, 1, 5, number] * 4, 40) for number in range(4)]
    texts, events = [], []
    for kind in (FastEngine, guesses.on(FastEngine)):
        engine = kind(model, config, num_blocks=20, kv_cache_dtype=kv_cache_dtype)
        assert engine.wait()
        texts.append(run(engine, jobs, events))
    assert texts[0] == texts[1]
    assert any(chunk.accepted for e in events if isinstance(e, Stepped) for chunk in e.chunks)
