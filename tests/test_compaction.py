"""Compaction of a running engine: smaller pools and larger ones, and never another text."""

from __future__ import annotations

import random
import threading
from typing import Any

import httpx
import pytest

from nanovllm import LLM, SamplingParams
from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.fast.engine import FastEngine
from nanovllm.generation.events import Finished
from nanovllm.llm.read_options import BUNDLED, OptionError
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model
from nanovllm.paging.block_table import blocks_for
from nanovllm.paging.compacting import CompactionError, compact_engine
from nanovllm.paging.manager import BlockManager
from nanovllm.paging.store import PagedStore
from nanovllm.parallel.engine import ParallelEngine
from tests.parallel_tools import spec_of, thread_engine
from tests.serving_tools import TOKENIZER, live, wait_until

CONFIG = ModelConfig("qwen3", 2048, 32, 2, 4, 2, 8, 48, 256, qk_norm=True, eos_token_ids=(0, 2))
MODEL = dummy_model(CONFIG, seed=3)
BEGIN = list(range(100, 150))  # many prompts begin alike
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


def prompts(rng: random.Random, count: int) -> list[list[int]]:
    def drawn() -> list[int]:
        own = [rng.randrange(5, 2000) for _ in range(rng.randint(3, 40))]
        return BEGIN[: rng.choice([0, 16, 50])] + own

    return [drawn() for _ in range(count)]


def plain(num_blocks: int, swap: bool = False, caching: bool = True) -> Engine:
    store = PagedStore(
        CONFIG,
        num_blocks,
        preemption="swap" if swap else "recompute",
        num_host_blocks=40 if swap else 0,
        enable_prefix_caching=caching,
    )
    config = EngineConfig(max_num_seqs=6, max_num_batched_tokens=64)
    return Engine(MODEL, config, store=store, tokenizer=TOKENIZER)


def compiled(num_blocks: int, codes: str = "auto") -> FastEngine:
    config = EngineConfig(max_num_seqs=6, max_num_batched_tokens=64)
    parts: Any = {"manager": BlockManager(num_blocks, 16), "num_blocks": num_blocks}
    engine = FastEngine(MODEL, config, tokenizer=TOKENIZER, kv_cache_dtype=codes, **parts)
    engine.wait()
    return engine


def on_ranks(num_blocks: int) -> Engine:
    spec = spec_of(
        BUNDLED.parent / "draft", 2, 1, block_size=16, blocks=num_blocks, num_host_blocks=40
    )
    engine = thread_engine(spec, preemption="swap")
    config = EngineConfig(max_num_seqs=6, max_num_batched_tokens=64)
    parts: Any = {"block_size": 16, "num_host_blocks": 40, "preemption": "swap"}
    return ParallelEngine(
        engine.model, config, executor=engine.executor, tokenizer=TOKENIZER, **parts
    )


KINDS = {
    "plain": lambda: plain(24),
    "plain, no prefix cache": lambda: plain(24, caching=False),
    "plain, swapping": lambda: plain(14, swap=True),
    "compiled": lambda: compiled(24),
    "compiled, int8": lambda: compiled(24, "int8"),
    "two ranks, swapping": lambda: on_ranks(14),
}


def answers(engine: Engine, asked: list[list[int]], rng: random.Random | None) -> dict:
    """Ids by request; with rng, requests come over time and the pool is moved and cut meanwhile."""
    found, seen = {}, {"moved": 0, "smaller": 0, "larger": 0, "waiting": 0, "preempted": 0}
    left = list(enumerate(asked))
    while left or engine.has_unfinished:
        for _ in range(len(left) if rng is None else rng.randint(0, 3)):
            if left:
                i, prompt = left.pop(0)
                params = SamplingParams(
                    temperature=i % 2, n=1 + (i % 4 == 1), seed=i, max_tokens=20, ignore_eos=True
                )
                engine.add_request(prompt, params, request_id=i)
        for event in engine.step():
            if isinstance(event, Finished):
                found[event.request_id, event.index] = event.completion.token_ids
        if rng is not None:
            engine.check()
            seen["waiting"] = max(seen["waiting"], len(engine.scheduler.queue()))
            seen["preempted"] += any(r.num_preemptions for r in engine.scheduler.queue())
            if rng.random() < 0.4:
                size = rng.choice([None, None, rng.randint(7, 30)])
                before = engine.store.num_blocks
                try:
                    done = compact_engine(engine, size)
                except CompactionError:
                    assert engine.store.num_blocks == before
                else:
                    assert done.num_blocks == (size or before) == engine.store.num_blocks
                    assert done.span <= done.num_blocks
                    seen["moved"] += done.moved
                    seen["smaller"] += done.num_blocks < before
                    seen["larger"] += done.num_blocks > before
                engine.check()
    engine.check()
    assert engine.store.free_tokens == engine.store.total_tokens
    if hasattr(engine, "executor"):
        engine.executor.close()
    return {"ids": found, "seen": seen}


@pytest.mark.parametrize("seeds", [2, pytest.param(12, marks=pytest.mark.proof)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.few(2)
def test_no_text_changes(kind: str, seeds: int) -> None:
    happened = dict.fromkeys(("moved", "smaller", "larger", "waiting", "preempted"), 0)
    for seed in range(seeds):
        asked = prompts(random.Random(seed), 14)
        wanted = answers(KINDS[kind](), asked, None)["ids"]
        got = answers(KINDS[kind](), asked, random.Random(seed))
        assert got["ids"] == wanted
        for name, count in got["seen"].items():
            happened[name] += count
    assert all(happened.values()), happened


def test_it_pays_in_counts() -> None:
    """Half of the requests end: one move a block gives half of the pool back, and computes none."""
    store = PagedStore(CONFIG, 64, enable_prefix_caching=False)
    engine = Engine(MODEL, EngineConfig(max_num_seqs=16, max_num_batched_tokens=512), store=store)
    for i in range(16):
        long = SamplingParams(temperature=0, max_tokens=4 if i % 2 else 16, ignore_eos=True)
        engine.add_request(list(range(10 + i, 50 + i)), long, request_id=i)
    ended = 0
    while ended < 8:
        ended += sum(isinstance(event, Finished) for event in engine.step())
    running = list(engine.scheduler.running)
    assert len(running) == 8
    held = sum(len(store.block_ids(request)) for request in running)
    lost = sum(request.num_computed_tokens for request in running)
    computed: list[int] = []
    execute = engine.execute
    engine.execute = lambda plan: computed.append(plan.num_tokens) or execute(plan)  # type: ignore
    done = compact_engine(engine, 32)
    assert (done.span_before, held, done.span) == (45, 24, 24)
    assert done.moved == 12  # those of 24 that lay above block 24
    assert (done.nbytes_before, done.nbytes) == (2 * done.nbytes, store.nbytes)
    assert computed == []
    engine.step()
    assert computed == [8]  # one token a request: nothing is computed again, of
    assert lost == 350  # tokens that a new pool would compute


def test_an_llm_gives_memory_back_and_takes_it_again() -> None:
    llm = LLM(num_gpu_blocks_override=64, enforce_eager=True)
    texts = [o.outputs[0].text for o in llm.generate(["Once", "1, 2, 3,"], GREEDY, False)]
    assert llm.compact().num_blocks == 64
    smaller = llm.compact(num_blocks=8)
    assert (smaller.num_blocks_before, smaller.num_blocks) == (64, 8)
    assert smaller.nbytes == smaller.nbytes_before // 8
    assert texts == [o.outputs[0].text for o in llm.generate(["Once", "1, 2, 3,"], GREEDY, False)]
    pieces, shown = llm.stream("Once", GREEDY), ""
    for number, piece in enumerate(pieces):
        shown += piece.text
        llm.compact(num_blocks=(4, 64)[number % 2])
    assert shown == texts[0]
    assert llm.runner.engine.store.cache.k.shape[1] == llm.runner.engine.store.num_blocks


@pytest.mark.parametrize(
    ("options", "num_blocks", "says"),
    [
        ({"engine": "continuous"}, None, "compact needs lab05"),
        ({"engine": "static"}, None, "compact needs lab05"),
        ({}, 0, "at least 1"),
        ({}, True, "at least 1"),
        ({}, 2.5, "at least 1"),
        ({}, 33, "made with 32"),
        ({"kv_cache_dtype": "int8", "enforce_eager": True}, 20, "cannot change its size"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(options, num_blocks, says) -> None:
    size = {} if "engine" in options else {"num_gpu_blocks_override": 32}
    llm = LLM(**size, **options)
    with pytest.raises(OptionError) as error:
        llm.compact(num_blocks)
    assert says in str(error.value) and "\n" not in str(error.value)
    assert str(error.value).endswith(".")


def test_codes_move_without_another_size() -> None:
    llm = LLM(num_gpu_blocks_override=32, kv_cache_dtype="int8", enforce_eager=True)
    texts = [o.outputs[0].text for o in llm.generate(["Once"], GREEDY, False)]
    stream = llm.stream("Once", GREEDY)
    shown = ""
    for piece in stream:
        shown += piece.text
        llm.compact()
    assert shown == texts[0]


KNOWN_TO_OTHERS = (
    "nanovllm.gpu.engine:GpuEngine",
    "nanovllm.cluster.connected_store:ConnectedStore",
)


@pytest.mark.parametrize("home", KNOWN_TO_OTHERS)
def test_engines_whose_blocks_others_know_say_why_not(home: str) -> None:
    module, _, name = home.partition(":")
    why = getattr(__import__(module, fromlist=[name]), name).why_not_compact
    engine = plain(8)
    target: Any = engine.store if name == "ConnectedStore" else engine
    target.why_not_compact = why
    with pytest.raises(CompactionError, match=r"^compact: .*; .*[.]$"):
        compact_engine(engine)


def test_too_small_for_what_is_open_says_how_much_is_needed() -> None:
    engine = plain(32)
    engine.add_request(list(range(5, 60)), SamplingParams(max_tokens=100), request_id=1)
    least = blocks_for(55 + 99, 16)
    with pytest.raises(CompactionError, match=f"need {least}:"):
        compact_engine(engine, least - 1)
    assert engine.store.num_blocks == 32
    engine.step()
    [running] = engine.scheduler.running
    engine.store.manager.hold(engine.store.block_ids(running)[:1], "x")
    assert compact_engine(engine, least).num_blocks == least
    engine.check()


def test_a_server_compacts_while_it_answers() -> None:
    body = {"prompt": "Once", "temperature": 0, "max_tokens": 60, "ignore_eos": True}
    engine, go = plain(40), threading.Event()
    step, steps = engine.step, iter(range(3))
    with live(engine) as server:
        url = server.url
        wanted = httpx.post(url + "/v1/completions", json=body, timeout=60).json()["choices"]
        # From here the engine stands after three steps, still asked for more, until `go`.
        held: Any = engine
        held.step = lambda: step() if next(steps, 3) < 3 or go.wait(0.01) else []
        with httpx.stream(
            "POST", url + "/v1/completions", json=body | {"stream": True}, timeout=60
        ) as answer:
            lines = answer.iter_lines()
            next(lines)
            done = httpx.post(url + "/compact", json={"num_blocks": 10}).json()
            assert (done["num_blocks_before"], done["num_blocks"]) == (40, 10)
            assert httpx.get(url + "/dashboard/state").json()["kv"]["num_blocks"] == 10
            refused = httpx.post(url + "/compact", json={"num_blocks": 1})
            go.set()
            text = "".join(lines)
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "num_blocks"
        assert 'finish_reason":"length"' in text.replace(" ", "")
        again = httpx.post(url + "/v1/completions", json=body, timeout=60).json()["choices"]
        assert again == wanted
        assert 'num_gpu_blocks="10"' in httpx.get(url + "/metrics").text
        long = body | {"prompt": [7] * 180, "max_tokens": 20}
        unfit = httpx.post(url + "/v1/completions", json=long, timeout=60)
        assert unfit.status_code == 400 and "tokens" in unfit.text
        assert httpx.post(url + "/compact", json={"num_blocks": 1 << 40}).status_code == 400
        assert httpx.post(url + "/compact", json={"num_blocks": 40}).json()["num_blocks"] == 40
        assert httpx.post(url + "/v1/completions", json=long, timeout=60).status_code == 200
        wait_until(lambda: not server.server.engine.streams)
        server.assert_idle()
