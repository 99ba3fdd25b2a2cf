"""Task 7: one optimisation of the engine, judged by the same texts and by counts."""

import random
from functools import cache

import pytest
import torch

from grader import expect
from grader.checks.engine_costs import costs, different
from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.events import Admitted, Preempted, Stepped
from nanovllm.batching.request import Request
from nanovllm.generation.events import Finished, TokenGenerated
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
    """What the events say of each prompt and sample, without times; checked after every step."""
    told, step = {}, 0
    while engine.has_unfinished or step < 9:
        for number, (arrival, prompt, params) in enumerate(jobs):
            if arrival == step:
                engine.add_request(prompt, params, seed=number, request_id=number)
        for number in (aborts or {}).get(step, ()):
            engine.abort(number)
        for event in engine.step():
            if not isinstance(event, Stepped):
                part = getattr(event, "index", "prompt")
                told.setdefault(f"{event.request_id}.{part}", []).append(event)
        engine.check()
        step += 1
    return {name: story(events) for name, events in sorted(told.items())}


def story(events):
    """Of one sample. How often it waits is the engine's own affair."""
    kinds = [type(e).__name__ for e in events if not isinstance(e, Admitted | Preempted)]
    drawn = [event for event in events if isinstance(event, TokenGenerated)]
    found = {"events": kinds, "tokens": [event.token_id for event in drawn]}
    found["logprobs"] = [plain_logprobs(event.logprobs) for event in drawn]
    if isinstance(events[-1], Finished):
        end = events[-1].completion
        found["end"] = [list(end.token_ids), end.finish_reason, end.stop_reason]
        found["all logprobs"] = [plain_logprobs(each) for each in end.logprobs or ()]
    return found


def plain_logprobs(logprobs):
    return sorted([token, one.logprob, one.rank] for token, one in (logprobs or {}).items())


def pool(config, blocks=80):
    """A store, in whose blocks stands what nobody may use."""
    store = PagedStore(config, blocks, 4)
    store.cache.k.fill_(torch.nan)
    store.cache.v.fill_(torch.nan)
    return store


def same(model, config, jobs, call, cause, blocks=80):
    expect(
        run(mine(model, config, pool(model.config, blocks)), jobs),
        run(plain(model, config, pool(model.config)), jobs),
        call=call,
        given={"jobs": len(jobs), "budget": config.max_num_batched_tokens},
        cause=cause,
        atol=1e-4,
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
    alone = [(0, [draw.randrange(3, 40)], SamplingParams(temperature=0.0, max_tokens=90))]
    model = dummy_model(CONFIGS["qwen3"], seed % 999)
    call = "the text of your engine for one request, one token of prompt and 90 behind it"
    same(model, EngineConfig(), alone, call, "whatever is kept by position grows with it")


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
    given_up = draw.randrange(8)
    found = run(mine(model, config, pool(model.config)), jobs, {4: [given_up]})
    wanted = run(plain(model, config, pool(model.config)), jobs)
    others = [key for key in wanted if not key.startswith(f"{given_up}.")]
    expect(
        {key: found.get(key) for key in others},
        {key: wanted[key] for key in others},
        call="what the others are told where one request is given up",
        cause="they go on as if it had never been",
    )
    config = EngineConfig(max_num_seqs=5, max_num_batched_tokens=9, max_model_len=15, max_chunk=4)
    jobs = [(0, prompt[:9], params) for _, prompt, params in jobs]
    engine = mine(model, config, pool(model.config))
    expect(engine.config, config, call="the config of your engine", cause="the one that was given")
    same(model, config, jobs, "your engine with a max_model_len of 15", "its config holds")


@pytest.mark.check(task=7, points=3, title="Gate: who fails fails alone; two engines, one model")
def test_failures(seed, monkeypatch):
    shape = CONFIGS["qwen3"]
    model = dummy_model(shape, seed % 999)
    model.embed_tokens.weight.data[39] = torch.nan  # the output matrix is another
    greedy = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, logit_bias={39: -99.0})
    jobs = [(0, [6, 39, 7], greedy), (0, [4, 5], greedy), (1, [8, 9, 10, 11, 12], greedy)]
    config = EngineConfig(max_num_seqs=4)
    call = "your engine, one prompt with a row of NaN"
    same(model, config, jobs, call, "that request fails; the others' texts stay")
    jobs = jobs[1:]
    wanted = run(plain(model, config, pool(shape)), jobs)
    first, second = (mine(model, config, pool(shape)) for _ in range(2))
    expect(
        [run(first, jobs), run(second, jobs)],
        [wanted, wanted],
        call="two engines on one model",
        cause="a model may be given to several engines",
    )
    tokens = Request.token_ids

    def broken(request, start, end):
        if request.sequence.request_id == 0 and end > start == 3:
            raise RuntimeError("this request's step fails")
        return tokens(request, start, end)

    monkeypatch.setattr(Request, "token_ids", broken)
    expect(
        run(mine(model, config, pool(shape)), jobs)["1.0"],
        wanted["1.0"],
        call="a request, where a step that it shares fails because of another one",
        cause="a request that fails fails alone: the step is computed again without it",
    )


@cache
def measured():
    """Costs of a workload on the plain engine and on yours, what both tell, and the prompts."""
    draw = random.Random(14)
    shape = CONFIGS["qwen3"]
    config = EngineConfig(max_num_seqs=4, max_num_batched_tokens=24)
    params = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)
    jobs = [(0, prompt, params) for _, prompt, _ in jobs_of(draw, 8, [{}])]
    found, stories = [], []
    for make in (plain, mine):

        def ready(make=make):
            model = dummy_model(shape, 14)
            return make(model, config, PagedStore(shape, 80, 4)), model.layers

        found.append(costs(ready, lambda engine: stories.append(run(engine, jobs)), CountOps))
    return found, stories, [prompt for _, prompt, _ in jobs]


def ratios():
    """Of the counts that decide, after what has to hold for them to say anything."""
    (base, own), stories, prompts = measured()
    expect(stories[1], stories[0], call="texts of the workload", cause="as the plain engine's")
    expect.that(
        not own.unseen,
        f"{own.unseen} operations of torch ran where CountOps cannot see them, in other threads or "
        "without its mode: what a step computes is counted",
    )
    texts = [[*prompt, *stories[0][f"{i}.0"]["tokens"][:-1]] for i, prompt in enumerate(prompts)]
    expect.that(
        own.tokens >= different(texts) / 2,
        f"the products with the model's weights are those of {own.tokens:.0f} tokens, but there "
        f"are {different(texts)} different ones: products go through torch, with the model's own "
        "weights",
    )
    steps = base.reads + len(prompts) * 10
    expect.that(
        own.reads <= steps,
        f"floats went to the host {own.reads} times, on the plain engine {base.reads} times: a "
        "step computes with torch",
    )
    return {n: getattr(own, n) / getattr(base, n) for n in ("operations", "tokens", "bytes")}


def shown(found):
    return ", ".join(f"{name} {share:.2f}" for name, share in found.items())


@pytest.mark.check(task=7, points=8, title="Counts: operations or tokens fall by a quarter")
def test_falls():
    found = ratios()
    expect.that(
        min(found["operations"], found["tokens"]) <= 0.75,
        "operations or tokens are at most three quarters of the plain engine's; yours: "
        + shown(found),
    )


@pytest.mark.check(task=7, points=8, title="Counts: and none of the others grows")
def test_none_grows():
    found = ratios()
    expect.that(
        max(found.values()) <= 1.05 and min(found["operations"], found["tokens"]) <= 0.95,
        "something falls, and nothing grows by more than a twentieth; yours: " + shown(found),
    )
