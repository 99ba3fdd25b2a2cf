"""The fast CPU path against the plain engine: the same text, the same books, in every family."""

from __future__ import annotations

import dataclasses
import gc
import os
import random
import subprocess
import sys
import weakref
from array import array
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.events import Failed, Preempted
from nanovllm.batching.plan import Chunk, Plan
from nanovllm.fast import FastPathError, available, fast_engine
from nanovllm.fast.build import _ISAS, ISA, _processor, instructions, load_library
from nanovllm.fast.engine import FastEngine
from nanovllm.fast.file_pages import give_back
from nanovllm.fast.memory import CHUNK, Arena, untouched
from nanovllm.fast.step import NativeStep, StepInput
from nanovllm.fast.store import FastStore
from nanovllm.fast.weights import NativeWeights, interleave, pack
from nanovllm.generation.events import Finished, Prefilled, TokenGenerated
from nanovllm.generation.params import SamplingParams
from nanovllm.llm.scoring import one_by_one
from nanovllm.model.attend import RecomputeAttend
from nanovllm.model.config import ModelConfig, RopeScaling
from nanovllm.model.experts import ExpertsConfig
from nanovllm.model.loader import dummy_model, empty_model
from nanovllm.model.transformer import Transformer
from nanovllm.paging.store import PagedStore
from nanovllm.performance.moe import MoE
from nanovllm.speculative.guessed_plan import GuessedChunk
from nanovllm.speculative.proposer import Guesses
from tests.native_builds import TILES
from tests.processes import ROOT

BIASES = {"qkv_bias": True, "output_bias": True, "mlp_bias": True}
YARN = RopeScaling("yarn", factor=2.0, original_max_position=64)
FAMILIES = {
    "qwen3": ModelConfig("qwen3", 97, 64, 3, 4, 2, 16, 96, 160, qk_norm=True, tie_embeddings=True),
    "qwen3, one group": ModelConfig("qwen3", 101, 48, 2, 4, 1, 32, 80, 160, qk_norm=True),
    "qwen2": ModelConfig("qwen2", 97, 64, 2, 4, 4, 16, 70, 160, qkv_bias=True, rope_scaling=YARN),
    "mistral, a window": ModelConfig("mistral", 97, 64, 2, 4, 2, 20, 96, 160, windows=(7, None)),
    "llama, many heads": ModelConfig("llama", 97, 64, 2, 26, 2, 6, 96, 160, **BIASES),
    "gpt2": ModelConfig("gpt2", 97, 64, 2, 4, 4, 16, 100, 160, tie_embeddings=True, **BIASES),
    "experts, one layer dense": ModelConfig(
        "qwen3_moe", 97, 64, 3, 4, 2, 16, 96, 160, qk_norm=True,
        experts=ExpertsConfig(7, 3, 22, normalize=False, layers=(0, 2)),
    ),
    "experts, one shared": ModelConfig(
        "qwen2_moe", 97, 48, 2, 4, 4, 16, 20, 160, qkv_bias=True,
        experts=ExpertsConfig(5, 2, 34, normalize=True, layers=(0, 1), shared_size=74),
    ),
}  # fmt: skip
families = pytest.mark.parametrize("name", FAMILIES)
Job = tuple[int, list[int], SamplingParams]  # the step before which it arrives, prompt, parameters


def random_model(
    config: ModelConfig, seed: int = 0, dtype: torch.dtype = torch.float32
) -> Transformer:
    """`dummy_model`, with experts where the config has them."""
    model = dummy_model(config, seed, dtype)
    for layer in config.experts.layers if config.experts else ():
        moe = MoE(config).to(dtype).requires_grad_(False)
        for weight in moe.parameters():
            weight.normal_(generator=torch.Generator().manual_seed(seed + weight.numel()))
            weight.mul_(1.5 * weight.shape[-1] ** -0.5)
        model.layers[layer].mlp = moe
    return model


if available() is not None:
    pytest.skip(f"the fast path cannot run here: {available()}", allow_module_level=True)


def greedy(count: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)


def random_jobs(
    rng: random.Random, vocab: int, params: Callable[[int], SamplingParams]
) -> list[Job]:
    shared = [rng.randrange(vocab) for _ in range(40)]  # some prompts begin alike
    jobs = []
    for _ in range(8):
        own = [rng.randrange(vocab) for _ in range(rng.randint(1, 50))]
        prompt = shared[: rng.choice([0, 0, 16, 33])] + own
        jobs.append((rng.randrange(12), prompt, params(rng.randint(1, 30))))
    return jobs


def run(engine: Engine, jobs: list[Job]) -> tuple[dict[int, tuple[int, ...]], set[type]]:
    """The tokens of each job, by its place, and the kinds of events seen; checked at each step."""
    tokens, kinds, step = {}, set(), 0
    while engine.has_unfinished or step <= max(arrival for arrival, _, _ in jobs):
        for number, (arrival, prompt, params) in enumerate(jobs):
            if arrival == step:
                engine.add_request(prompt, params, seed=number, request_id=number)
        for event in engine.step():
            kinds.add(type(event))
            if isinstance(event, Finished):
                tokens[event.request_id] = event.completion.token_ids
        engine.check()
        step += 1
    return tokens, kinds


def ready_engine(model: torch.nn.Module, config: EngineConfig, num_blocks: int) -> FastEngine:
    fast = fast_engine(model, config, num_blocks=num_blocks)
    assert fast.wait()
    return fast


@families
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.few(2)
def test_float32_text_is_the_plain_engines(name: str, seed: int) -> None:
    rng, model = random.Random(seed), random_model(FAMILIES[name], seed)
    jobs = random_jobs(rng, model.config.vocab_size, greedy)
    num_blocks = rng.randint(6, 20)  # 6 hold one request: preemption
    config = EngineConfig(
        max_num_seqs=rng.randint(2, 6),
        max_num_batched_tokens=rng.randint(8, 64),
        max_chunk=rng.choice([None, 5, 16]),
    )
    plain, _ = run(Engine(model, config, store=PagedStore(model.config, num_blocks)), jobs)
    fast, _ = run(ready_engine(model, config, num_blocks), jobs)
    assert len(fast) == len(jobs)
    assert fast == plain


def test_preemption_changes_no_token() -> None:
    model = dummy_model(FAMILIES["qwen3"], 3)
    jobs = [(0, [i + 1] * 20, greedy(40)) for i in range(4)]
    config = EngineConfig(max_num_seqs=4, max_num_batched_tokens=64)
    calm, _ = run(ready_engine(model, config, 40), jobs)
    tight, kinds = run(ready_engine(model, config, 7), jobs)
    assert Preempted in kinds
    assert tight == calm


def test_sampling_asks_the_plain_sampler() -> None:
    model = dummy_model(FAMILIES["qwen3"], 4)
    wishes = [
        {"temperature": 0.8, "top_p": 0.9},
        {"temperature": 0.0, "repetition_penalty": 1.5},
        {"temperature": 0.0, "logprobs": 2},
        {"temperature": 0.0, "min_tokens": 5},
        {"temperature": 0.0, "logit_bias": {3: 50.0}},
        {"temperature": 0.0},
    ]
    jobs = [(0, [5, 6, 7], SamplingParams(max_tokens=12, **wish)) for wish in wishes]
    config = EngineConfig(max_num_seqs=6)
    plain, _ = run(Engine(model, config, store=PagedStore(model.config, 40)), jobs)
    fast, _ = run(ready_engine(model, config, 40), jobs)
    assert fast == plain
    assert set(fast[4]) == {3}


@families
@pytest.mark.few(1)
def test_the_switch_in_the_middle_changes_no_token(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K and V that the plain steps wrote are read by the native ones."""
    model = random_model(FAMILIES[name], 5)
    jobs = random_jobs(random.Random(5), model.config.vocab_size, greedy)
    config = EngineConfig(max_num_seqs=4, max_num_batched_tokens=32)
    expected, _ = run(Engine(model, config, store=PagedStore(model.config, 30)), jobs)
    fast = ready_engine(model, config, 30)
    native, calls = fast._native, 0
    fast._native = None
    schedule = fast.scheduler.schedule

    def switching() -> object:
        nonlocal calls
        calls += 1
        fast._native = native if calls > 20 else None
        return schedule()

    monkeypatch.setattr(fast.scheduler, "schedule", switching)
    found, _ = run(fast, jobs)
    assert calls > 25
    assert found == expected


def teacher_forced(step: NativeStep, model: torch.nn.Module, ids: list[int]) -> torch.Tensor:
    """Logits after the last token, the prompt read in two chunks, and 64 blocks in disorder."""
    store = FastStore(model.config, 64, 16, model.embed_tokens.weight.dtype)
    blocks = torch.randperm(64).tolist()
    for start, end in ((0, len(ids) // 3), (len(ids) // 3, len(ids))):
        numbers = (ids[start:end], [0, end - start], [end], [1], blocks, [0])
        logits, tokens = step(StepInput(*(array("i", n) for n in numbers)), store.cache)
    assert tokens[0] == int(logits[0].argmax())
    return logits[0]


@pytest.mark.parametrize(
    "defines",
    [
        pytest.param((), id="plain"),
        pytest.param(("-DNV_EMULATE_DOT",), id="dot", marks=pytest.mark.proof),
        pytest.param(TILES, id="tiles"),
    ],
)
@pytest.mark.parametrize("name", ["qwen3", "mistral, a window", "gpt2", "experts, one shared"])
@pytest.mark.few(1)
def test_bfloat16_agrees_with_float32_token_by_token(name: str, defines: tuple[str, ...]) -> None:
    """Both kinds of arithmetic: with the processor's bfloat16 dot product, and without."""
    model = random_model(FAMILIES[name], 6, torch.bfloat16)
    exact = random_model(FAMILIES[name], 6, torch.bfloat16).float()
    library = load_library(torch.bfloat16, defines=defines)
    step = NativeStep(library, NativeWeights(model, library.nv_lanes(), 160))
    rng, gaps, spread = random.Random(6), [], []
    for _ in range(50):
        ids = [rng.randrange(97) for _ in range(rng.randint(3, 120))]
        with torch.inference_mode():
            hidden = exact(torch.tensor(ids), torch.arange(len(ids)), RecomputeAttend(exact.config))
            expected = exact.logits(hidden[-1:])[0]
        found = teacher_forced(step, model, ids)
        gaps.append(float(expected.max() - expected[int(found.argmax())]))
        spread.append(float(expected.std()))
    assert sum(gap == 0 for gap in gaps) >= 0.9 * len(gaps)
    assert max(gaps) < 0.1 * max(spread)


@pytest.mark.parametrize("defines", [pytest.param((), id="plain"), pytest.param(TILES, id="tiles")])
@pytest.mark.parametrize("block_size", [16, 32])
def test_a_row_has_the_same_logits_beside_whatever_others(
    defines: tuple[str, ...], block_size: int
) -> None:
    """Odd sizes, rows that fill no tile, prompts in parts, and NaNs in what is left of blocks."""
    sizes = {"hidden_size": 72, "intermediate_size": 106, "windows": (37, None)}
    config = dataclasses.replace(FAMILIES["mistral, a window"], **sizes)
    model = random_model(config, 6, torch.bfloat16)
    library = load_library(torch.bfloat16, defines=defines)
    step = NativeStep(library, NativeWeights(model, library.nv_lanes(), 160))
    rng = random.Random(2)
    prompts = [[rng.randrange(97) for _ in range(length)] for length in (1, 19, 33, 70, 111)]

    def last_logits(chosen: list[list[int]], parts: int) -> torch.Tensor:
        store = FastStore(config, 64, block_size, torch.bfloat16)
        store.cache.v.fill_(torch.nan)
        own = [list(range(i * 8, i * 8 + 8)) for i in range(len(chosen))]
        done = [0] * len(chosen)
        for part in range(1, parts + 1):
            ends = [-(-len(ids) * part // parts) for ids in chosen]
            new = [ids[a:b] for ids, a, b in zip(chosen, done, ends, strict=True)]
            starts = [0, *accumulate(len(ids) for ids in new)]
            numbers = (
                [i for ids in new for i in ids], starts, ends, [1] * len(chosen),
                [block for blocks in own for block in blocks], [8 * i for i in range(len(chosen))],
            )  # fmt: skip
            logits, _ = step(StepInput(*(array("i", n) for n in numbers)), store.cache)
            done = ends
        return logits.clone()

    alone = torch.cat([last_logits([ids], 1) for ids in prompts])
    assert alone.isfinite().all()
    assert torch.equal(last_logits(prompts, 1), alone)
    assert torch.equal(last_logits(prompts[1:], 3), alone[1:])


def test_more_rows_for_an_expert_than_are_multiplied_together() -> None:
    experts = ExpertsConfig(2, 2, 34, normalize=False, layers=(0,), shared_size=20)
    model = random_model(ModelConfig("qwen2_moe", 97, 64, 1, 4, 2, 16, 96, 400, experts=experts))
    ids = [random.Random(3).randrange(97) for _ in range(330)]
    with torch.inference_mode():
        hidden = model(torch.tensor(ids), torch.arange(330), RecomputeAttend(model.config))
        expected = model.logits(hidden[-1:])[0]
    library = load_library(torch.float32)
    step = NativeStep(library, NativeWeights(model, library.nv_lanes(), 400))
    torch.testing.assert_close(teacher_forced(step, model, ids), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("experts", [None, ExpertsConfig(3, 2, 34, normalize=False, layers=(0,))])
def test_a_prompt_so_long_that_results_go_past_the_caches(experts: ExpertsConfig | None) -> None:
    """Rows of 264 and 320 floats, 667 at once; and more positions than attention takes together."""
    family = "qwen3_moe" if experts else "qwen3"
    config = ModelConfig(
        family, 97, 264, 2, 8, 4, 20, 96, 1000, qk_norm=True, experts=experts
    )  # fmt: skip
    model, ids = random_model(config, 5), [random.Random(4).randrange(97) for _ in range(1000)]
    with torch.inference_mode():
        hidden = model(torch.tensor(ids), torch.arange(1000), RecomputeAttend(config))
        expected = model.logits(hidden[-1:])[0]
    library = load_library(torch.float32)
    step = NativeStep(library, NativeWeights(model, library.nv_lanes(), 1000))
    torch.testing.assert_close(teacher_forced(step, model, ids), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["qwen3, one group", "experts, one shared"])
def test_nan_meets_the_request_that_caused_it_alone(name: str) -> None:
    model = random_model(FAMILIES[name], 7)  # its output matrix is another
    jobs = [(0, [1, 2, 3], greedy(8)), (0, [4, 5], greedy(8)), (0, [9, 9, 9], greedy(8))]
    expected, _ = run(ready_engine(model, EngineConfig(), 20), jobs[:2])
    model.embed_tokens.weight[9] = torch.nan
    found, kinds = run(ready_engine(model, EngineConfig(), 20), jobs)
    assert Failed in kinds
    assert all(9 not in answer for answer in expected.values())
    assert found == expected


def test_infinite_logits_fail_as_on_the_plain_engine() -> None:
    model, config = random_model(FAMILIES["qwen3, one group"], 7), EngineConfig()
    model.norm.weight[0] = 1e6
    model.lm_head.weight.zero_()
    model.lm_head.weight[5, 0], model.lm_head.weight[6, 0] = 3e38, -3e38
    jobs = [(0, [1, 2, 3], greedy(8)), (1, [4, 5], greedy(8))]
    plain = run(Engine(model, config, store=PagedStore(model.config, 20)), jobs)
    assert plain[0] == {} and Failed in plain[1]
    assert run(ready_engine(model, config, 20), jobs) == plain


def test_one_token_chunks_are_one_sequence_also_with_guesses_behind_the_last() -> None:
    """Else two sequences of one request would race for V of the pair's second token."""
    prompt = list(range(30, 38))
    request: Any = SimpleNamespace(
        sequence=SimpleNamespace(prompt_token_ids=prompt, output_token_ids=[]),
        num_tokens=len(prompt),
        token_ids=lambda start, end: prompt[start:end],
    )
    other: Any = SimpleNamespace(**vars(request))
    chunk = GuessedChunk.of(Chunk(request, 2, 6, 8), Guesses((5, 9)))
    chunks = (*one_by_one(chunk), Chunk(other, 7, 1, 8))
    given = StepInput.of(Plan(chunks), lambda each: [3] if each is other else [7])
    assert given.token_ids.tolist() == [*prompt[2:], 5, 9, prompt[7]]
    assert given.query_starts.tolist() == [0, 8, 9]
    assert given.context_lens.tolist() == [10, 8]
    assert given.completes.tolist() == [8, 1]
    assert (given.blocks.tolist(), given.block_starts.tolist()) == ([7, 3], [0, 1])


def test_same_events_as_the_plain_engine() -> None:
    model = dummy_model(FAMILIES["qwen2"], 8)
    jobs = [(0, [1, 2, 3], greedy(3)), (2, [4] * 30, greedy(2))]
    config = EngineConfig(max_num_batched_tokens=16)
    _, plain = run(Engine(model, config, store=PagedStore(model.config, 20)), jobs)
    _, fast = run(ready_engine(model, config, 20), jobs)
    assert fast == plain
    assert {Prefilled, TokenGenerated, Finished} <= fast


@pytest.mark.proof
@pytest.mark.parametrize(
    ("isa", "lanes"), [("sse2", 4), ("avx2", 8), ("avx512", 16), ("avx512_bf16", 16)]
)
def test_less_than_the_processor_has_gives_the_same_text(isa: str, lanes: int) -> None:
    """What others' processors get: this file's comparisons and those of codes, once more."""
    if _ISAS[isa][1] not in _processor().split():
        pytest.skip(f"no {isa} here")
    code = "import torch; from nanovllm.fast.build import load_library as load; "
    code += "print(*{load(dtype).nv_lanes() for dtype in (torch.float32, torch.bfloat16)})"
    environment = os.environ | {ISA: isa}
    said = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert said.stdout.split() == [str(lanes)], said.stderr
    files = ["tests/test_fast.py", "tests/test_fast_quantized.py"]
    chosen = ["-m", "not proof or few", "-k", "not processor_has and not process_ends"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *files, *chosen, "-p", "no:cacheprovider"],
        cwd=ROOT, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]


def test_an_instruction_set_that_nobody_knows_leaves_the_plain_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ISA, "avx3")
    said: list[str] = []
    model = dummy_model(FAMILIES["qwen3"])
    engine = FastEngine(model, EngineConfig(), num_blocks=8, notify=said.append)
    assert not engine.wait()
    assert "NANOVLLM_MAX_CPU_ISA is 'avx3'; it can be sse2, avx2" in said[-1]
    monkeypatch.setattr("nanovllm.fast.build._processor", lambda: "flags : fpu sse2 avx2")
    for wanted, options in (
        ("", ["-march=native"]),
        ("avx2", ["-march=x86-64-v3"]),
        ("avx512", ["-march=native"]),
    ):
        monkeypatch.setenv(ISA, wanted)
        assert instructions() == options


@pytest.mark.parametrize("wanted", ["", "amx"])
def test_tiles_that_the_system_refuses_are_not_compiled_for(
    wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ISA, wanted)
    monkeypatch.setattr("nanovllm.fast.build._processor", lambda: "flags : avx512f amx_bf16")
    monkeypatch.setattr("nanovllm.fast.build._tiles_allowed", lambda: True)
    assert "-mno-amx-bf16" not in instructions()
    monkeypatch.setattr("nanovllm.fast.build._tiles_allowed", lambda: False)
    assert "-mamx-bf16" not in instructions()
    assert "-mno-amx-bf16" in instructions()


def test_without_a_compiler_it_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert "no C++ compiler" in available()
    with pytest.raises(FastPathError, match="no C"):
        fast_engine(dummy_model(FAMILIES["qwen3"]), EngineConfig(), num_blocks=8)


def test_a_compiler_that_fails_leaves_the_plain_steps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho out of order >&2\nexit 1\n", encoding="utf-8")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    said: list[str] = []
    model = dummy_model(FAMILIES["qwen3"], 9)
    config = EngineConfig(max_num_seqs=3, max_num_batched_tokens=24)
    fast = FastEngine(model, config, num_blocks=30, notify=said.append)
    assert not fast.wait()
    assert "compiling" in said[0] and "out of order" in said[-1]
    jobs = random_jobs(random.Random(9), 97, greedy)
    expected, _ = run(Engine(model, config, store=PagedStore(model.config, 30)), jobs)
    assert run(fast, jobs)[0] == expected


def test_without_a_home_it_says_where_to_keep_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", home)
    with pytest.raises(FastPathError, match="set HOME or XDG_CACHE_HOME"):
        load_library(torch.float32)


def test_without_openmp_each_process_asks_for_it_once_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The build with one thread must not be taken for the other one when OpenMP comes."""
    compiler, calls, openmp = (tmp_path / name for name in ("compiler", "calls", "openmp"))
    compiler.write_text(
        f'#!/bin/sh\necho "$@" >> {calls}\n'
        f'case "$*" in *-fopenmp*) [ -e {openmp} ] || exit 1;; esac\n'
        'while [ "$1" != -o ]; do shift; done\necho no library > "$2"\n',
        encoding="utf-8",
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    said: list[str] = []

    def asked(new_process: bool = True) -> list[bool]:
        """Of each call of the compiler, whether it was for OpenMP."""
        if new_process:
            monkeypatch.setattr("nanovllm.fast.build._failed", set())
        calls.write_text("", encoding="utf-8")
        with pytest.raises(FastPathError, match="stored or loaded"):
            load_library(torch.float32, said.append)
        return ["-fopenmp" in line for line in calls.read_text(encoding="utf-8").splitlines()]

    assert asked() == [True, False] and len(said) == 2
    assert asked(new_process=False) == []
    assert asked() == [True] and len(said) == 2, "nothing new is compiled"
    openmp.touch()
    assert asked() == [True] and len(said) == 3
    assert asked() == []


def test_two_processes_compile_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The one that comes second waits, and takes what the first one made."""
    slow = tmp_path / "slow"
    slow.write_text(
        f"#!/bin/sh\necho called >> {tmp_path}/calls\nsleep 1\n"
        'while [ "$1" != -o ]; do shift; done\necho no library > "$2"\n',
        encoding="utf-8",
    )
    slow.chmod(0o755)
    monkeypatch.setenv("CXX", str(slow))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code = "import torch; from nanovllm.fast.build import load_library; load_library(torch.float32)"
    asking = [
        subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert all("cannot be stored or loaded" in each.communicate()[1] for each in asking)
    assert (tmp_path / "calls").read_text(encoding="utf-8") == "called\n"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"device": "meta"}, "CPUs"),
        ({"dtype": torch.float16}, "float16"),
        ({"block_size": 8}, "multiple of 16"),
        ({"config": ModelConfig("llama", 9, 5, 1, 1, 1, 4, 8, 16)}, "even sizes"),
        ({"config": FAMILIES["gpt2"], "dtype": torch.bfloat16}, None),
    ],
)
def test_available_gives_the_reason(given: dict, reason: str | None) -> None:
    found = available(**given)
    assert found is None if reason is None else reason in found


def test_another_dtype_than_the_models_is_refused() -> None:
    model = dummy_model(FAMILIES["qwen3"])
    with pytest.raises(FastPathError, match="load it so"):
        fast_engine(model, EngineConfig(), num_blocks=8, dtype=torch.bfloat16)


def test_packing_moves_every_weight_once() -> None:
    weight = torch.arange(1.0, 5 * 4 + 1).view(5, 4)
    for dtype in (torch.float32, torch.bfloat16):
        packed = pack(weight.to(dtype), panel=4)
        assert sorted(packed[packed != 0].tolist()) == weight.flatten().tolist()
    assert packed.shape == (2, 2, 4, 2)
    assert packed[0, 1, 2].tolist() == weight[2, 2:].tolist()  # panel 0, steps 2 and 3, column 2
    assert interleave((torch.ones(2, 3), torch.zeros(2, 3)), lanes=2).sum(1).tolist() == [
        3,
        3,
        0,
        0,
    ]


def resident_of(path: Path) -> int:
    """Bytes of a file that are mapped and in this process's memory."""
    rows = Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines()
    starts = [i for i, row in enumerate(rows) if row.endswith(str(path))]
    sizes = [next(row for row in rows[i:] if row.startswith("Rss:")) for i in starts]
    return 1024 * sum(int(row.split()[1]) for row in sizes)


@pytest.mark.skipif(sys.platform != "linux", reason="no other system tells what is in memory")
def test_of_mapped_weights_no_page_stays_once_they_are_packed(tmp_path: Path) -> None:
    config = dataclasses.replace(FAMILIES["qwen3"], hidden_size=512, intermediate_size=512)
    path = tmp_path / "model.safetensors"
    save_file(dict(dummy_model(config).state_dict()), path)
    weights = {}
    with safe_open(path, framework="pt") as file:
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    model = empty_model(config)
    model.load_state_dict(weights, assign=True)
    model.eval().requires_grad_(False)
    ids = torch.tensor([5, 6, 7])

    def logits() -> Tensor:
        return model.logits(model(ids, torch.arange(3), RecomputeAttend(config)))

    before, everything = logits(), path.stat().st_size
    assert resident_of(path) > 0.9 * everything
    NativeWeights(model, 8, 16)
    assert resident_of(path) < 0.1 * everything
    assert torch.equal(logits(), before), "the plain model has them from the file"
    model.layers[1].mlp.down_proj.weight.mul_(2)
    changed = logits()
    NativeWeights(model, 8, 16)
    assert torch.equal(logits(), changed), "what was written to is no file's"
    own = torch.ones(1 << 20)
    give_back(own)
    assert own.all()


@pytest.mark.parametrize("seconds", [0.0, 0.1, 0.2, 0.4])
@pytest.mark.few(1)
def test_a_process_ends_while_the_native_step_is_made(seconds: float) -> None:
    """A thread that Python ends in torch's code takes the whole process with it."""
    code = (
        "import time, torch\n"
        "from nanovllm import LLM, SamplingParams\n"
        "torch.set_num_threads(1)\n"
        "LLM(enforce_eager=False).generate(['a'], SamplingParams(max_tokens=1), use_tqdm=False)\n"
        f"time.sleep({seconds})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, "terminate" in done.stderr) == (0, False), done.stderr


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_k_and_v_take_memory_once_they_are_written(dtype):
    """Of a pool that is hardly used, most stays the system's; what is not written is zero."""

    def resident():
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf(
            "SC_PAGE_SIZE"
        )

    before = resident()
    k = untouched((4, 1 << 11, 8, 16, 32, 2), dtype)
    assert k.data_ptr() % 64 == 0 and k.dtype == dtype and k.nbytes >= 1 << 25
    assert resident() - before < k.nbytes / 8
    assert not k[1, 77].any() and not k[-1, -1].any()
    k[2, 5] = 1
    assert k[2, 5].all() and not k[2, 4].any() and not k[2, 6].any()


def test_tensors_lie_side_by_side_in_an_arena() -> None:
    """Of odd sizes, also larger than what it asks for at once; none lies in another's place."""
    arena, rng = Arena(), random.Random(0)
    sizes = [rng.randint(1, 5000) for _ in range(40)] + [CHUNK + 8, 3]
    made = [torch.full((size,), i % 100, dtype=torch.uint8) for i, size in enumerate(sizes)]
    kept = [arena.copy(tensor) for tensor in made]
    assert all(map(torch.equal, made, kept)) and all(each.data_ptr() % 64 == 0 for each in kept)
    assert abs(kept[1].data_ptr() - kept[0].data_ptr()) < 5064
    turned = torch.arange(12.0).view(3, 4).t()
    assert torch.equal(arena.copy(turned), turned) and arena.copy(turned).is_contiguous()


def test_an_engine_runs_on_the_weights_of_another() -> None:
    model, config = dummy_model(FAMILIES["qwen2"], 8), EngineConfig()
    jobs = [(0, [1, 2, 3], greedy(5)), (0, [4] * 30, greedy(4))]
    one, other = (ready_engine(model, config, 20) for _ in range(2))
    before = run(other, jobs)
    own = weakref.ref(other._native.weights)  # pyright: ignore[reportOptionalMemberAccess]
    other.share_weights(one)
    gc.collect()
    assert own() is None, "its own are let go"
    assert run(other, jobs)[0] == before[0] == run(one, jobs)[0]
