"""Lab 05 end to end: what must not change a text does not, and a fault stays with its request."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest
import torch
import transformers

from grader.course.paths import ROOT
from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.errors import ConfigError, NonFiniteLogitsError, RequestTooLargeError
from nanovllm.batching.events import Aborted, Failed, Preempted, Stepped
from nanovllm.generation.beam import BeamSearchParams, beam_search
from nanovllm.generation.events import Finished
from nanovllm.generation.loop import generate
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.sampling import argmax_sampler, sample
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model, load_model
from nanovllm.paging.beam import paged_beam_search
from nanovllm.paging.compaction import compact
from nanovllm.paging.store import PagedStore
from tests.tiny_checkpoint import SMALL, save_random

CONFIG = ModelConfig(
    "qwen3", 50, 32, 2, 4, 2, 8, 48, 64, qk_norm=True, eos_token_ids=(2,), windows=(None, 7)
)
BOOKS = """
from nanovllm.paging import (
    block_pool, block_table, compaction, consistency, fragmentation, manager, occupancy,
    holds, prefix_cache, prefix_index, sharing, swap, transfers,
)
import sys
sys.exit("torch" in sys.modules)
"""


def greedy(count: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)


def random_prompts(seed: int, count: int, vocab_size: int = 50) -> list[list[int]]:
    """Prompts of 1 to 20 tokens, most of which begin with the same ones."""
    draw = random.Random(seed)
    trunk = [draw.randrange(3, vocab_size) for _ in range(12)]
    tails = [
        [draw.randrange(3, vocab_size) for _ in range(draw.randint(1, 8))] for _ in range(count)
    ]
    return [trunk[: draw.choice([0, 5, 12])] + tail for tail in tails]


def serve(engine: Engine, before=None, most: int = 1500) -> dict:
    """Step to the end, books checked after every step; what became of each (request, sample)."""
    found: dict = {"events": []}
    for step in range(most):
        if before is not None:
            before(step)
        if not engine.has_unfinished:
            break
        events = engine.step()
        engine.check()
        found["events"] += events
        for event in events:
            if isinstance(event, Finished):
                found[event.request_id, event.index] = event.completion.token_ids
            elif isinstance(event, Failed):
                found[event.request_id, event.index] = event.error
            elif isinstance(event, Aborted):
                found[event.request_id, event.index] = "aborted"
    assert not engine.has_unfinished, "nobody gets on"
    pool, host = engine.store.manager.pool, engine.store.manager.swap.pool
    assert (pool.num_free, host.num_free) == (pool.num_blocks, host.num_blocks)
    return found


def texts(found: dict) -> dict:
    return {key: value for key, value in found.items() if key != "events"}


@pytest.fixture(scope="module")
def model():
    return dummy_model(CONFIG)


@pytest.fixture(scope="module")
def requests(model):
    """Prompts, params, and the answer of lab 03's loop to each sample, one request at a time."""
    prompts = random_prompts(1, 7)
    params = [
        SamplingParams(temperature=i % 2, n=3 if i in (1, 3) else 1, max_tokens=4 + i, seed=i)
        for i in range(7)
    ]
    wanted = {}
    for i, (prompt, its) in enumerate(zip(prompts, params, strict=True)):
        for event in generate(model, prompt, its):
            if isinstance(event, Finished):
                wanted[i, event.index] = event.completion.token_ids
    return prompts, params, wanted


SETTINGS = [
    # block size, pool over the largest request, caching, preemption, host blocks, budget, chunk
    (1, 12.0, True, "recompute", 0, 64, None),
    (1, 1.0, True, "swap", 9, 16, 3),
    (1, 1.0, False, "recompute", 0, 16, None),
    (4, 12.0, False, "recompute", 0, 8, None),
    (4, 2.0, True, "recompute", 0, 16, 5),
    (4, 2.0, False, "swap", 4, 64, None),
    (4, 1.0, True, "swap", 40, 16, None),
    (4, 1.0, False, "swap", 40, 8, 2),
    (4, 1.0, True, "recompute", 0, 64, None),
    (16, 12.0, True, "recompute", 0, 64, 7),
    (16, 2.0, False, "recompute", 0, 16, None),
    (16, 1.0, True, "swap", 2, 16, 3),
]


@pytest.mark.few(4)
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_no_setting_changes_a_text(model, requests, setting) -> None:
    size, room, caching, preemption, host, budget, chunk = setting
    prompts, params, wanted = requests
    longest = max(len(p) + q.max_tokens for p, q in zip(prompts, params, strict=True))
    store = PagedStore(
        CONFIG, int(room * -(-longest // size)), size,
        enable_prefix_caching=caching, preemption=preemption, num_host_blocks=host,
    )  # fmt: skip
    config = EngineConfig(max_num_seqs=6, max_num_batched_tokens=budget, max_chunk=chunk)
    engine = Engine(model, config, store=store)
    order = random.Random(str(setting)).sample(range(7), 7)

    def arrive(step: int) -> None:
        if step == 0:
            for i in order[:4]:
                engine.add_request(prompts[i], params[i], request_id=i)
        if step == 3:
            for i in order[4:]:
                engine.add_request(prompts[i], params[i], request_id=i)
        if step % 4 == 2:
            compact(store.manager)

    found = serve(engine, arrive)
    assert texts(found) == wanted
    preempted = any(isinstance(event, Preempted) for event in found["events"])
    assert preempted or room > 2.0 or caching, "the pool is so small that somebody must wait"
    if room > 2.0:
        steps = [event for event in found["events"] if isinstance(event, Stepped)]
        computed = sum(chunk.length for step in steps for chunk in step.chunks)
        every = sum(len(prompts[i]) + len(tokens) - 1 for (i, _), tokens in wanted.items())
        assert computed < every, "samples share a prompt, and prompts begin alike"


def test_greedy_texts_are_those_of_transformers(tmp_path) -> None:
    theirs = save_random(tmp_path, **SMALL)
    ours = load_model(tmp_path)
    prompts = random_prompts(3, 5, vocab_size=400)
    store = PagedStore(ours.config, 12, 4, preemption="swap", num_host_blocks=6)
    engine = Engine(ours, EngineConfig(max_num_batched_tokens=24), store=store)
    for prompt in prompts:
        engine.add_request(prompt, greedy(20))
    found = serve(engine)
    assert any(isinstance(event, Preempted) for event in found["events"])
    settings = transformers.GenerationConfig(
        max_new_tokens=20, min_new_tokens=20, do_sample=False, pad_token_id=0, eos_token_id=None
    )
    for i, prompt in enumerate(prompts):
        with torch.inference_mode():
            whole = theirs.generate(torch.tensor([prompt]), settings)
        assert list(found[i, 0]) == whole[0, len(prompt) :].tolist()


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_beams_are_those_of_lab_03(model, block_size) -> None:
    for width, prompt in zip((1, 2, 4), random_prompts(5, 3), strict=True):
        params = BeamSearchParams(beam_width=width, max_tokens=9)
        wanted = beam_search(model, prompt, params)
        found = paged_beam_search(model, prompt, params, block_size=block_size)
        assert [h.token_ids for h in found] == [h.token_ids for h in wanted]


def test_samples_share_the_prompt_and_copy_one_block_each(model, monkeypatch) -> None:
    prompt = random_prompts(7, 1)[0] + list(range(10, 32))
    prompt = prompt[: len(prompt) // 4 * 4 + 2]
    store = PagedStore(CONFIG, 60, 4)
    engine = Engine(model, store=store)
    engine.add_request(prompt, SamplingParams(n=4, seed=1, max_tokens=3, ignore_eos=True))
    copied, copy_blocks = [], store.cache.copy_blocks
    monkeypatch.setattr(
        store.cache, "copy_blocks", lambda pairs: (copied.extend(pairs), copy_blocks(pairs))
    )
    for _ in range(2):
        engine.step()
    tables = [store.manager.block_ids(request) for request in engine.scheduler.running]
    full = len(prompt) // 4
    assert len(tables) == 4
    assert len({tuple(table[:full]) for table in tables}) == 1
    assert len({table[full] for table in tables}) == 4
    assert len(copied) == 3
    assert store.manager.pool.num_used == full + 4
    serve(engine)


def test_a_request_that_can_never_fit_is_refused(model) -> None:
    engine = Engine(model, store=PagedStore(CONFIG, 4, 4))
    with pytest.raises(RequestTooLargeError, match="room for 17 tokens"):
        engine.add_request([5] * 10, greedy(8))
    request_id = engine.add_request([5] * 10, greedy(7))
    assert len(serve(engine)[request_id, 0]) == 7


def test_a_pool_of_one_block(model) -> None:
    engine = Engine(model, store=PagedStore(CONFIG, 1, 16))
    prompts = [[5, 6, 7], [8, 9], [10]]
    for prompt in prompts:
        engine.add_request(prompt, greedy(9))
    found = serve(engine)
    for i, prompt in enumerate(prompts):
        [wanted] = [e for e in generate(model, prompt, greedy(9)) if isinstance(e, Finished)]
        assert found[i, 0] == wanted.completion.token_ids
    with pytest.raises(RequestTooLargeError):
        engine.add_request([5], greedy(17))


@pytest.mark.parametrize(
    "wrong",
    [{"num_blocks": 0}, {"block_size": 0}, {"num_host_blocks": -1}, {"preemption": "hope"}],
)
def test_bad_settings_are_refused(wrong) -> None:
    with pytest.raises(ConfigError):
        PagedStore(CONFIG, **{"num_blocks": 4, **wrong})


def answers_of_others(model, faulty: int, spoil, **more) -> tuple[object, dict, dict]:
    """Serve five requests, one of them spoiled; its end, the others' texts, and the true ones."""
    prompts = random_prompts(9, 5)
    store = PagedStore(CONFIG, 14, 4, **more)
    engine = Engine(model, EngineConfig(max_num_batched_tokens=16), store=store)
    spoil(engine, faulty)
    for prompt in prompts:
        engine.add_request(prompt, greedy(10))
    found = texts(serve(engine))
    wanted = {}
    for i, prompt in enumerate(prompts):
        [event] = [e for e in generate(model, prompt, greedy(10)) if isinstance(e, Finished)]
        wanted[i, 0] = event.completion.token_ids
    end = found.pop((faulty, 0))
    del wanted[faulty, 0]
    return end, found, wanted


def sampler_that_raises(engine: Engine, faulty: int) -> None:
    prompt = random_prompts(9, 5)[faulty]

    def touchy(logits, rows):
        if any(list(r.prompt_token_ids) == prompt and len(r.output_token_ids) == 4 for r in rows):
            raise ZeroDivisionError("no luck")
        return sample(logits, rows)

    engine.sampler = touchy


def attention_with_nan(engine: Engine, faulty: int) -> None:
    store, plain = engine.store, engine.store.attention
    bind = store.bind

    def spoiled(plan):
        rows, at = [], 0
        for chunk in plan.chunks:
            if chunk.request.sequence.request_id == faulty and chunk.end > 12:
                rows += range(at, at + chunk.length)
            at += chunk.length
        attend = bind(plan)

        def with_nan(layer, q, k, v):
            k[rows] = torch.nan  # its blocks are full of it, too
            v[rows] = torch.nan
            return attend(layer, q, k, v)

        return with_nan

    store.bind = spoiled
    assert store.attention is plain


@pytest.mark.parametrize("more", [{}, {"preemption": "swap", "num_host_blocks": 5}], ids=str)
@pytest.mark.parametrize(
    ("spoil", "error"),
    [(sampler_that_raises, ZeroDivisionError), (attention_with_nan, NonFiniteLogitsError)],
)
def test_a_fault_harms_nobody_else(model, spoil, error, more) -> None:
    end, found, wanted = answers_of_others(model, 2, spoil, **more)
    assert isinstance(end, error)
    assert found == wanted


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_aborts_in_every_state_lose_no_block(model, preemption) -> None:
    store = PagedStore(CONFIG, 9, 4, preemption=preemption, num_host_blocks=9)
    engine = Engine(model, EngineConfig(max_num_batched_tokens=16), store=store)
    prompts = [[5 + i] * 8 for i in range(6)]
    for prompt in prompts:
        engine.add_request(prompt, greedy(12))
    states = {}

    def give_up(step: int) -> None:
        for state, number in (("waiting", 5), ("running", 1)):
            held = {"waiting": engine.scheduler.waiting, "running": engine.scheduler.running}[state]
            ids = [request.sequence.request_id for request in held]
            if number in ids and step >= 2 and state not in states:
                states[state] = number
                engine.abort(number)
        preempted = [r for r in engine.scheduler.waiting if r.num_preemptions]
        if preempted and "preempted" not in states:
            states["preempted"] = preempted[0].sequence.request_id
            engine.abort(states["preempted"])

    found = texts(serve(engine, give_up))
    assert set(states) == {"waiting", "running", "preempted"}
    assert all(found[number, 0] == "aborted" for number in states.values())
    for i, prompt in enumerate(prompts):
        if i not in states.values():
            [event] = [e for e in generate(model, prompt, greedy(12)) if isinstance(e, Finished)]
            assert found[i, 0] == event.completion.token_ids
    assert not engine.abort(0)  # it has ended


def test_salted_requests_share_nothing(model) -> None:
    store = PagedStore(CONFIG, 40, 4, salt_of=lambda request: str(request.sequence.request_id % 2))
    engine = Engine(model, store=store, sampler=argmax_sampler)
    for _ in range(4):
        engine.add_request(list(range(5, 18)), greedy(3))
        serve(engine)
    stats = store.manager.prefix.stats
    assert (stats.queries, stats.hits) == (4 * 13, 2 * 12)


def test_the_books_load_no_torch() -> None:
    environment = {**os.environ, "NANOVLLM_CODE": "reference"}
    done = subprocess.run([sys.executable, "-c", BOOKS], cwd=ROOT, env=environment, check=False)
    assert done.returncode == 0
