"""Several ranks beside every other option: the rows of the README's table, one by one."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import torch

from nanovllm import LLM, SamplingParams
from nanovllm.batching.config import EngineConfig
from nanovllm.batching.events import Stepped
from nanovllm.generation.beam import BeamSearchParams
from nanovllm.llm import OptionError, parallel_level, ranks
from nanovllm.llm.engine_options import EngineOptions
from nanovllm.llm.read_options import BUNDLED
from nanovllm.paging.swapping import Swapping
from nanovllm.parallel.errors import ExecutorDied
from nanovllm.parallel.launch import start_threads
from tests.parallel_tools import answers, drain, preemptions, spec_of, thread_engine
from tests.readme_tables import options_beside

DRAFT = str(BUNDLED.parent / "draft")  # the smaller of the bundled models
PROMPTS = ["Once upon a time there was a little", "1, 2, 3, 4, 1, 2, 3, 4, 1, 2,", "12 + 30 ="]
GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.9, seed=4, n=2, logprobs=2, max_tokens=12)
POLICIES = ("fcfs", "sjf", "deadline", "round-robin", "priority", "size-queues")


@pytest.fixture(autouse=True)
def ranks_are_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes have tests of their own, and take seconds to start."""
    monkeypatch.setattr(
        parallel_level, "start_processes", lambda spec: start_threads(spec.size, spec.share)
    )


@cache
def one_rank(**options: Any) -> LLM:
    return LLM(DRAFT, enforce_eager=True, **options)


def two_ranks(**options: Any) -> LLM:
    return LLM(DRAFT, tensor_parallel_size=2, **options)


def texts(llm: LLM, params: SamplingParams = GREEDY) -> list:
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    llm.runner.engine.check()
    return [[(a.text, a.token_ids, a.finish_reason) for a in o.outputs] for o in outputs]


def same(**options: Any) -> LLM:
    """Two ranks with these options answer as one rank does."""
    llm = two_ranks(**options)
    assert texts(llm) == texts(one_rank(**options))
    return llm


def prefixes() -> None:
    same(enable_prefix_caching=False)
    llm = same()
    texts(llm)
    assert llm.runner.engine.store.prefix_stats.hits > 0


def sizes() -> None:
    steps = []
    llm = two_ranks(max_num_batched_tokens=5, max_num_seqs=2)
    llm.runner.on_event = lambda event: steps.append(event) if type(event) is Stepped else None
    assert texts(llm) == texts(one_rank())
    assert max(sum(run.length for run in step.chunks) for step in steps) == 5
    assert max(step.running for step in steps) == 2


def blocks() -> None:
    llm = same(block_size=4, num_gpu_blocks_override=30)
    assert (llm.runner.engine.store.num_blocks, llm.runner.engine.store.block_size) == (30, 4)


def bytes_of_each() -> None:
    llm = same(kv_cache_memory_bytes=1 << 20)
    assert [row.kv_bytes for row in llm.runner.engine.rank_rows()] == [1 << 20] * 2
    alone = one_rank(kv_cache_memory_bytes=1 << 20).runner.engine.store
    assert llm.runner.engine.store.num_blocks == 2 * alone.num_blocks, "two key heads, one a rank"


def swap() -> None:
    found = []
    for num_blocks in (64, 12):
        engine = thread_engine(
            spec_of(DRAFT, 2, 1, blocks=num_blocks, num_host_blocks=20), preemption="swap"
        )
        for token in range(5, 9):
            engine.add_request([token] * 9, GREEDY)
        events = drain(engine)
        found.append(answers(events))
        engine.executor.close()
    assert preemptions(events) > 0 and found[0] == found[1]


def swap_space() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Swapping, "pays", lambda *_: True)  # a quick machine would compute again
        llm = same(swap_space=0.01, block_size=4, num_gpu_blocks_override=16)
    swapping = llm.runner.engine.store.swapping
    assert swapping.num_swapped > 0 and swapping.bytes_in > 0
    copied = llm.model.executor.call("copy_seconds")
    assert copied > 0 and 1e5 < swapping.bytes_per_second < 1e12, "that of noting a copy"


def compaction() -> None:
    llm, wanted = two_ranks(block_size=4, num_gpu_blocks_override=40), texts(one_rank())
    weights = sum(row.weight_bytes for row in llm.runner.engine.rank_rows())
    for size in (None, 20, 40):
        stream, shown = llm.stream(PROMPTS[0], GREEDY), ""
        for number, piece in enumerate(stream):
            shown += piece.text
            if number == 5:
                done = llm.compact(size)
                assert done.num_blocks == llm.runner.engine.store.num_blocks == (size or 40)
        assert shown == wanted[0][0][0]
        rows = llm.runner.engine.rank_rows()
        assert sum(row.kv_bytes for row in rows) == done.nbytes
        assert sum(row.weight_bytes for row in rows) == weights
    llm.compact(20)
    llm.model.executor.close()
    with pytest.raises(ExecutorDied):
        texts(llm)
    assert texts(llm) == wanted and llm.runner.engine.store.num_blocks == 20, "the new ranks' too"


def policies() -> None:
    for policy in POLICIES:
        spec = spec_of(DRAFT, 2, 1)
        engine = thread_engine(spec)
        config = EngineConfig(max_num_seqs=2, policy=policy)
        engine = type(engine)(engine.model, config, executor=engine.executor, block_size=4)
        for token in range(5, 9):
            engine.add_request([token] * 9, GREEDY)
        assert len(answers(drain(engine))) == 4
        engine.executor.close()


def lengths() -> None:
    llm = same(max_model_len=40)
    assert all(len(o[0][1]) <= 20 for o in texts(llm))


def half() -> None:
    """Sums of halves are other sums: the first tokens agree, not every one."""
    llm = two_ranks(dtype="bfloat16")
    found, wanted = texts(llm), texts(one_rank(dtype="bfloat16"))
    assert [o[0][1][:2] for o in found] == [o[0][1][:2] for o in wanted]
    rows = llm.runner.engine.rank_rows()
    whole = sum(w.nbytes for w in one_rank(dtype="bfloat16").model.state_dict().values())
    assert sum(row.weight_bytes for row in rows) < 1.1 * whole


def eager() -> None:
    for enforce in (True, False):
        llm = two_ranks(enforce_eager=enforce)
        assert llm.rung.step == "plain: the compiled step knows no shards"
        assert texts(llm) == texts(one_rank())


def sampling() -> None:
    llm = two_ranks()
    assert texts(llm, SAMPLED) == texts(one_rank(), SAMPLED)


def requests() -> None:
    """What a request says of itself: urgent, to be scored, shared with whom."""
    scored = SamplingParams(temperature=0, max_tokens=4, prompt_logprobs=1)
    llm, alone = two_ranks(), one_rank()
    found, wanted = (each.generate(PROMPTS, scored, use_tqdm=False) for each in (llm, alone))
    for ours, theirs in zip(found, wanted, strict=True):
        assert len(ours.prompt_logprobs) == len(theirs.prompt_logprobs) > 2
        for one, other in zip(ours.prompt_logprobs[1:], theirs.prompt_logprobs[1:], strict=True):
            assert one.keys() == other.keys()
            gaps = [abs(one[token].logprob - other[token].logprob) for token in one]
            assert max(gaps) < 1e-4
    long = "Once upon a time there was a little cat. " * 4
    for salt, shared in (("a", False), ("b", False), ("a", True)):
        (out,) = llm.generate({"prompt": long, "cache_salt": salt}, GREEDY, use_tqdm=False)
        assert bool(out.num_cached_tokens) is shared
    llm = two_ranks(scheduling_policy="priority", max_num_seqs=1)
    assert texts(llm) == texts(alone)
    assert llm.generate(PROMPTS, GREEDY, use_tqdm=False, priority=[2, 1, 0])


def beams() -> None:
    params = BeamSearchParams(beam_width=3, max_tokens=8)
    llm = two_ranks()
    before = llm.model.executor.rows()[0].messages
    found = llm.beam_search(PROMPTS[0], params)
    assert [o.text for o in found[0].outputs] == [
        o.text for o in one_rank().beam_search(PROMPTS[0], params)[0].outputs
    ]
    assert llm.model.executor.rows()[0].messages - before <= 2 * 8 + 2


def refused(says: str, *each: dict[str, Any]) -> None:
    for options in each:
        with pytest.raises(OptionError, match=says):
            LLM(**{"model": DRAFT, "tensor_parallel_size": 2, **options})


def no_cards() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "device_count", lambda: 1)
        options = EngineOptions(tensor_parallel_size=2)
        with pytest.raises(OptionError, match="needs 2 GPUs, but 1 are here"):
            ranks.load(BUNDLED, torch.float32, torch.device("cuda"), options)


ROWS: dict[str, Callable[[], None]] = {
    "`enable_prefix_caching`, on or off": prefixes,
    "`max_num_batched_tokens`, `max_num_seqs`": sizes,
    "`block_size`, `num_gpu_blocks_override`": blocks,
    "`kv_cache_memory_bytes`": bytes_of_each,
    "preemption by swap (`PagedStore`)": swap,
    "`swap_space`": swap_space,
    "`LLM.compact`, `POST /compact`": compaction,
    "`scheduling_policy`, each of them": policies,
    "`max_model_len`": lengths,
    '`dtype="bfloat16"`': half,
    "`enforce_eager`, on or off": eager,
    "`n`, `logprobs`, `seed`": sampling,
    "`priority`, `prompt_logprobs`, `cache_salt` of a request": requests,
    "`beam_search`": beams,
    "`speculative_config`": partial(
        refused, "speculative_config does not go", {"speculative_config": {"method": "ngram"}}
    ),
    '`kv_cache_dtype` other than `"auto"`': partial(
        refused, "does not go", {"kv_cache_dtype": "int8"}, {"kv_cache_dtype": "fp8"}
    ),
    "`quantization`, or a folder that is quantized": partial(
        refused, "quantization does not go", {"quantization": "int4"}, {"quantization": "awq"}
    ),
    '`engine="continuous"` or `"static"` (slots)': partial(
        refused, "needs lab05", {"engine": "continuous"}, {"engine": "static"}
    ),
    "slices that do not divide the query heads, more stages than layers": partial(
        refused, "cannot be s", {"tensor_parallel_size": 3},
        {"tensor_parallel_size": 1, "pipeline_parallel_size": 99},
    ),
    "more ranks than GPUs": no_cards,
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.few(5)
def test_beside(row: str) -> None:
    ROWS[row]()


def test_the_table_in_the_readme_has_these_rows() -> None:
    options, refusals = options_beside("with several ranks")
    assert options == list(ROWS)
    assert refusals == list(ROWS)[-6:]
