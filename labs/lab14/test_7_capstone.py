"""Task 7: one optimisation of the engine, judged by the same texts and by counts."""

import random

import pytest
import torch

from grader import expect
from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.events import Aborted, Failed
from nanovllm.generation.events import Finished
from nanovllm.generation.params import SamplingParams
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model
from nanovllm.paging.store import PagedStore
from nanovllm.performance.capstone import make_engine
from nanovllm.performance.counting import CountOps

CONFIGS = {
    "qwen3": ModelConfig("qwen3", 40, 12, 2, 4, 2, 6, 20, 96, qk_norm=True),
    "llama": ModelConfig("llama", 40, 12, 2, 3, 1, 8, 14, 96, mlp_bias=True),
    "qwen2": ModelConfig("qwen2", 40, 12, 2, 6, 3, 4, 18, 96, qkv_bias=True, tie_embeddings=True),
    "mistral": ModelConfig("mistral", 40, 10, 2, 4, 4, 4, 18, 96, windows=(5, 5)),
}


def plain(model, config, store):
    return Engine(model, config, store=store)


def mine(model, config, store):
    return make_engine(model, config, store=store)


def jobs_of(draw, count, kinds):
    made = []
    shared = [draw.randrange(3, 40) for _ in range(9)]
    for _ in range(count):
        own = [draw.randrange(3, 40) for _ in range(draw.randint(1, 14))]
        params = SamplingParams(max_tokens=draw.randint(3, 14), **draw.choice(kinds))
        made.append((draw.randrange(8), shared[: draw.choice([0, 4, 8])] + own, params))
    return made


def run(engine, jobs, aborts=None):
    """Token ids by request (None: it failed or was given up); checked after every step."""
    found, step = {}, 0
    while engine.has_unfinished or step < 9:
        for number, (arrival, prompt, params) in enumerate(jobs):
            if arrival == step:
                engine.add_request(prompt, params, seed=number, request_id=number)
        for number in (aborts or {}).get(step, ()):
            engine.abort(number)
        for event in engine.step():
            if isinstance(event, Finished):
                found[event.request_id, event.completion.index] = list(event.completion.token_ids)
            elif isinstance(event, Failed | Aborted):
                found[event.request_id, 0] = None
        engine.check()
        step += 1
    return {f"{request}.{index}": ids for (request, index), ids in sorted(found.items())}


def same(model, config, jobs, call, cause, blocks=80, **more):
    stores = [PagedStore(model.config, size, 4) for size in (80, blocks)]
    expect(
        run(mine(model, config, stores[1]), jobs, **more),
        run(plain(model, config, stores[0]), jobs, **more),
        call=call,
        given={"jobs": len(jobs), "budget": config.max_num_batched_tokens},
        cause=cause,
    )


@pytest.mark.check(task=7, points=4, title="Gate: the plain engine's greedy texts")
def test_greedy(seed):
    draw = random.Random(seed)
    for family, shape in CONFIGS.items():
        config = EngineConfig(max_num_seqs=4, max_num_batched_tokens=draw.randint(5, 30))
        jobs = jobs_of(draw, 6, [{"temperature": 0.0}])
        long = [draw.randrange(3, 40) for _ in range(70)]
        jobs.append((2, long, SamplingParams(temperature=0.0, max_tokens=5)))
        call = f"texts of your engine on a {family} model"
        same(
            dummy_model(shape, seed % 999), config, jobs, call, "one by one, as the plain engine's"
        )


@pytest.mark.check(task=7, points=4, title="Gate: whatever a request asks for")
def test_kinds(seed):
    draw = random.Random(seed)
    kinds = [
        {"temperature": 0.8, "top_p": 0.9},
        {"temperature": 1.0, "n": 2},
        {"temperature": 0.0, "stop_token_ids": [5, 9, 20, 31]},
        {"temperature": 0.0, "repetition_penalty": 1.4},
        {"temperature": 0.0, "min_tokens": 3, "logit_bias": {7: 4.0}},
        {"temperature": 0.0, "logprobs": 2},
    ]
    config = EngineConfig(max_num_seqs=5, max_num_batched_tokens=24)
    model = dummy_model(CONFIGS["qwen3"], seed % 999)
    call = "texts of your engine: sampled, stopped, penalised, biased, two samples"
    same(model, config, jobs_of(draw, 9, kinds), call, "each request's own parameters hold")


@pytest.mark.check(task=7, points=3, title="Gate: preempted and given up")
def test_short(seed):
    draw = random.Random(seed)
    model = dummy_model(CONFIGS["llama"], seed % 999)
    jobs = jobs_of(draw, 8, [{"temperature": 0.0}])
    config = EngineConfig(max_num_seqs=5, max_num_batched_tokens=24)
    same(model, config, jobs, "your engine with a third of the blocks", "who is preempted resumes "
         "with the same text", blocks=14)  # fmt: skip
    aborts = {4: [draw.randrange(8)]}
    stores = [PagedStore(model.config, 80, 4) for _ in range(2)]
    found = run(mine(model, config, stores[0]), jobs, aborts)
    wanted = run(plain(model, config, stores[1]), jobs)
    others = [key for key in wanted if key != f"{aborts[4][0]}.0"]
    expect(
        {key: found.get(key) for key in others},
        {key: wanted[key] for key in others},
        call="texts of the others where one request is given up",
        cause="they go on as if it had never been",
    )


@pytest.mark.check(task=7, points=3, title="Gate: a bad row fails alone; two engines, one model")
def test_failures(seed):
    shape = CONFIGS["qwen3"]
    model = dummy_model(shape, seed % 999)
    model.embed_tokens.weight.data[39] = torch.nan  # the output matrix is another
    greedy = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, logit_bias={39: -99.0})
    jobs = [(0, [4, 5], greedy), (0, [6, 39, 7], greedy), (1, [8, 9, 10], greedy)]
    config = EngineConfig(max_num_seqs=4)
    call = "your engine, one prompt with a row of NaN"
    same(model, config, jobs, call, "that request fails; the others' texts stay")
    first = mine(model, config, PagedStore(shape, 80, 4))
    second = mine(model, config, PagedStore(shape, 80, 4))
    expect(
        [run(first, jobs[:1]), run(second, jobs[:1])],
        [run(plain(model, config, PagedStore(shape, 80, 4)), jobs[:1])] * 2,
        call="two engines on one model",
        cause="a model may be given to several engines",
    )


def counts_of(make, seed):
    """Operations, tokens, and bytes of weights and store, on one workload."""
    draw = random.Random(seed)
    shape = CONFIGS["qwen3"]
    model = dummy_model(shape, seed % 999)
    store = PagedStore(shape, 80, 4)
    engine = make(model, EngineConfig(max_num_seqs=4, max_num_batched_tokens=24), store)
    jobs = [
        (0, prompt, SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True))
        for _, prompt, _ in jobs_of(draw, 8, [{}])
    ]
    with CountOps() as ops:
        run(engine, jobs)
    weights = {w.untyped_storage().data_ptr(): w.untyped_storage().nbytes()
               for w in model.state_dict().values()}  # fmt: skip
    memory = sum(weights.values()) + store.nbytes
    return {"operations": ops.total, "tokens": ops.tokens, "bytes": memory}


def ratios(seed):
    base, own = counts_of(plain, seed), counts_of(mine, seed)
    return {name: own[name] / base[name] for name in base}


@pytest.mark.check(task=7, points=8, title="Counts: one of them falls by a quarter")
def test_falls(seed):
    found = ratios(seed)
    expect.that(
        min(found.values()) <= 0.75,
        "one of the counts is at most three quarters of the plain engine's; yours: "
        + ", ".join(f"{name} {share:.2f}" for name, share in found.items()),
    )


@pytest.mark.check(task=7, points=8, title="Counts: and none of the others grows")
def test_none_grows(seed):
    found = ratios(seed)
    expect.that(
        max(found.values()) <= 1.05 and min(found.values()) <= 0.95,
        "something falls, and nothing grows by more than a twentieth; yours: "
        + ", ".join(f"{name} {share:.2f}" for name, share in found.items()),
    )
