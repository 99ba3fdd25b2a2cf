"""The engine on several ranks: what it answers is what one rank answers, whatever happens."""

from __future__ import annotations

import gc
import os
import signal
import threading
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from nanovllm import LLM, SamplingParams
from nanovllm.batching.events import Stepped
from nanovllm.generation.beam import BeamSearchParams
from nanovllm.llm import OptionError
from nanovllm.model.errors import ModelFolderError
from nanovllm.parallel.errors import ExecutorDied
from nanovllm.parallel.share import RankShare
from tests.parallel_tools import (
    answers,
    drain,
    gone,
    plain_engine,
    preemptions,
    spec_of,
    thread_engine,
)
from tests.tiny_checkpoint import SMALL, save_random

SPLITS = [(1, 1), (2, 1), (4, 1), (1, 2), (1, 3), (2, 2)]
SHARED = [5, 9, 2, 7, 7, 1, 3, 8, 4]  # two blocks of four, and one token more
REQUESTS = [
    (SHARED, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)),
    ([*SHARED, 6, 6], SamplingParams(temperature=1.0, seed=3, n=3, max_tokens=9, ignore_eos=True)),
    ([4], SamplingParams(temperature=0.7, seed=8, max_tokens=15, ignore_eos=True)),
    (list(range(20, 60)), SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)),
]
PROMPTS = ["Once upon a time", "Mia's code is 7342. What is Mia's code?", "The"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    """Three layers, four heads over two key heads, and a number of tokens that is odd."""
    folder = tmp_path_factory.mktemp("tiny")
    save_random(folder, **{**SMALL, "num_hidden_layers": 3})
    return folder


def ask(engine: Any) -> None:
    for prompt, params in REQUESTS:
        engine.add_request(prompt, params)


@pytest.fixture(scope="module")
def wanted(folder: Path) -> dict:
    engine = plain_engine(folder)
    ask(engine)
    return answers(drain(engine))


@pytest.mark.parametrize(("slices", "stages"), SPLITS)
def test_texts_of_thread_ranks(folder: Path, wanted: dict, slices: int, stages: int) -> None:
    engine = thread_engine(spec_of(folder, slices, stages))
    ask(engine)
    events = drain(engine)
    assert answers(events) == wanted
    rows = engine.rank_rows()
    assert len(rows) == slices * stages
    steps = sum(isinstance(event, Stepped) for event in events)
    assert {row.last_call for row in rows} == {1 + steps}, "one message a step, after reserve"
    engine.executor.close()


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize(("slices", "stages"), [(2, 1), (1, 2), (2, 2)])
def test_preemption(folder: Path, wanted: dict, slices: int, stages: int, preemption: str) -> None:
    host = 16 if preemption == "swap" else 0
    spec = spec_of(folder, slices, stages, blocks=14, num_host_blocks=host)
    engine = thread_engine(spec, preemption=preemption)
    ask(engine)
    events = drain(engine)
    assert preemptions(events) > 0
    assert answers(events) == wanted
    if preemption == "swap":
        assert engine.store.manager.swap.stats.blocks_in > 0
    engine.executor.close()


def test_prefix_cache(folder: Path) -> None:
    engine = thread_engine(spec_of(folder, 2, 1))
    found = []
    for _ in range(2):
        engine.add_request(*REQUESTS[3])
        found.append(list(answers(drain(engine)).values()))
    assert found[0] == found[1]
    assert engine.store.prefix_stats.hits == 36, "all full blocks of 40 tokens but the last token's"
    engine.executor.close()


def test_abort(folder: Path, wanted: dict) -> None:
    engine = thread_engine(spec_of(folder, 2, 1))
    ask(engine)
    events = engine.step() + engine.step()
    engine.abort(1)
    events += drain(engine)
    found = answers(events)
    assert [found[1, index] for index in range(3)] == ["aborted"] * 3
    others = {key: value for key, value in wanted.items() if key[0] != 1}
    assert {key: value for key, value in found.items() if key[0] != 1} == others
    assert not engine.store.manager.owners()
    engine.executor.close()


class PickyShare(RankShare):
    """A step with token 55 in it raises on every rank, when its layers have been computed."""

    def compute(self, step: Any) -> Any:
        logits = super().compute(step)
        if 55 in step.token_ids:
            raise ValueError("55 is not to my taste")
        return logits


def test_a_step_that_raises_on_all_ranks_fails_its_own_request_alone(
    folder: Path, wanted: dict
) -> None:
    engine = thread_engine(spec_of(folder, 2, 1), PickyShare)
    ask(engine)
    found = answers(drain(engine))
    assert [type(found[3, 0]), str(found[3, 0])] == [ValueError, "55 is not to my taste"]
    assert {k: v for k, v in found.items() if k[0] != 3} == {
        k: v for k, v in wanted.items() if k[0] != 3
    }
    assert engine.failure is None
    engine.executor.close()


@cache
def one_rank(folder: str | None = None) -> LLM:
    return LLM(folder, enforce_eager=True)


def texts(llm: LLM) -> list:
    """Greedy, sampled, chat, stream and beams."""
    greedy = SamplingParams(temperature=0, max_tokens=16)
    sampled = SamplingParams(temperature=0.8, seed=5, n=3, max_tokens=12)
    found = llm.generate(PROMPTS, greedy, use_tqdm=False)
    found += llm.generate(PROMPTS, sampled, use_tqdm=False)
    found += llm.beam_search(PROMPTS, BeamSearchParams(beam_width=3, max_tokens=8))
    pieces = [piece.text for piece in llm.stream(PROMPTS[0], sampled_once(sampled))]
    return [[sample.text for sample in output.outputs] for output in found] + [pieces]


def sampled_once(params: SamplingParams) -> SamplingParams:
    return SamplingParams(temperature=params.temperature, seed=params.seed, max_tokens=12)


def pids(llm: LLM) -> list[int]:
    return [rank.process.pid for rank in llm.model.executor.ranks]


@pytest.mark.parametrize(
    "split",
    [(2, 1), pytest.param((1, 2), marks=pytest.mark.proof)],
    ids=["slices", "stages"],
)
def test_processes_answer_as_one_rank_does(split: tuple[int, int]) -> None:
    llm = LLM(tensor_parallel_size=split[0], pipeline_parallel_size=split[1])
    assert llm.rung.describe(llm.runner.engine).startswith(
        "the step is plain: the compiled step knows no shards"
    )
    assert "2 ranks" in llm.engine_name
    assert texts(llm) == texts(one_rank())
    llm.runner.engine.check()
    mine = pids(llm)
    no_shared_memory(mine)
    del llm
    gc.collect()
    assert all(map(gone, mine)), "ranks end with their LLM"


def no_shared_memory(of: list[int]) -> None:
    """A full /dev/shm is nothing to ranks that use none of it."""
    if not Path("/proc/self/maps").is_file():
        return
    for pid in of:
        assert "/dev/shm" not in Path(f"/proc/{pid}/maps").read_text()
        opened = [os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir() if fd.is_symlink()]
        assert not [path for path in opened if path.startswith("/dev/shm")]


@pytest.mark.proof
@pytest.mark.parametrize(
    "make",
    [transformers.LlamaConfig, transformers.Qwen2Config, transformers.MistralConfig,
     transformers.GPT2Config],
    ids=lambda make: make.model_type,
)  # fmt: skip
def test_four_processes_of_every_family(make: type, tmp_path: Path) -> None:
    sizes = SMALL
    if make is transformers.GPT2Config:
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 96}
    save_random(tmp_path, make, **sizes)
    llm = LLM(tmp_path, tensor_parallel_size=2, pipeline_parallel_size=2)
    assert texts(llm) == texts(one_rank(str(tmp_path)))


@pytest.mark.proof
def test_an_llm_goes_on_with_new_ranks() -> None:
    llm = LLM(tensor_parallel_size=2)
    old, greedy = pids(llm), SamplingParams(temperature=0, max_tokens=8)
    os.kill(old[1], signal.SIGKILL)
    with pytest.raises(ExecutorDied, match=r"rank 1 has ended \(killed by signal 9"):
        llm.generate(PROMPTS, greedy, use_tqdm=False)
    assert all(map(gone, old))
    assert texts(llm) == texts(one_rank())
    assert not set(pids(llm)) & set(old)


@pytest.mark.proof
def test_control_c_leaves_the_ranks_alone() -> None:
    llm = LLM(tensor_parallel_size=2)
    texts(llm)
    before, heard = pids(llm), []

    def interrupt(event: object) -> None:
        heard.append(event)
        if len(heard) == 10:
            threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT)).start()

    llm.runner.on_event = interrupt
    long = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPTS, long, use_tqdm=False)
    llm.runner.on_event = None
    assert texts(llm) == texts(one_rank())
    assert pids(llm) == before


REFUSED = [
    ({"tensor_parallel_size": 0}, "tensor_parallel_size must be a whole number, at least 1"),
    ({"pipeline_parallel_size": True}, "pipeline_parallel_size must be a whole number"),
    ({"tensor_parallel_size": 3}, "8 query heads cannot be shared equally by 3 ranks"),
    ({"pipeline_parallel_size": 9}, "layers cannot be spread over 9 stages"),
    ({"tensor_parallel_size": 2, "speculative_config": {"method": "ngram"}},
     "speculative_config does not go with tensor_parallel_size=2"),
    ({"tensor_parallel_size": 2, "kv_cache_dtype": "int8"},
     "kv_cache_dtype='int8' does not go with tensor_parallel_size=2"),
    ({"tensor_parallel_size": 2, "quantization": "int8"}, "quantization does not go with"),
    ({"pipeline_parallel_size": 2, "engine": "continuous"}, "pipeline_parallel_size=2 needs lab05"),
    ({"tensor_parallel_size": 2, "kv_cache_memory_bytes": 100}, "has no memory for a block"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "says"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_what_cannot_be_is_refused_in_one_sentence(options: dict, says: str) -> None:
    with pytest.raises((OptionError, ExecutorDied)) as refused:
        LLM(**options)
    sentence = str(refused.value)
    assert says in sentence
    assert "\n" not in sentence and sentence.endswith(".")
    assert not children(), "all processes are gone"


def children() -> list[int]:
    """Rank processes of this one, dead ones that nobody waited for included."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            words = path.with_name("cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == os.getpid() and b"rank_process" in words:
            found.append(int(path.parent.name))
    return found


def test_a_quantized_folder_is_refused(tmp_path: Path) -> None:
    save_random(tmp_path, **SMALL)
    config = tmp_path / "config.json"
    config.write_text(
        config.read_text().replace("{", '{"quantization_config": {"quant_method": "awq"},', 1)
    )
    with pytest.raises(OptionError, match="a quantized folder"):
        LLM(tmp_path, tensor_parallel_size=2)


def test_a_cut_file_of_weights_is_refused_as_ever(tmp_path: Path) -> None:
    save_random(tmp_path, **SMALL)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelFolderError, match="cut short"):
        LLM(tmp_path, tensor_parallel_size=2)
    assert not children()


def test_more_gpus_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    from nanovllm.llm import ranks
    from nanovllm.llm.engine_options import EngineOptions

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(OptionError, match="tensor_parallel_size=2 needs 2 GPUs, but 1 are here"):
        ranks.load(one_rank().folder, torch.float32, torch.device("cuda"),
                   EngineOptions(tensor_parallel_size=2))  # fmt: skip
