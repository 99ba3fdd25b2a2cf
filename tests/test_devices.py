"""Where the engine runs: on the CPU unless a GPU is named; and the way back from the GPU path."""

from __future__ import annotations

import os
from functools import partialmethod

import pytest
import torch

from nanovllm import LLM, SamplingParams
from nanovllm.gpu.engine import GpuEngine
from nanovllm.llm import OptionError, read_options
from nanovllm.llm.engine_options import EngineOptions
from nanovllm.llm.paged_engines import step_kind, why_not_fast
from nanovllm.paging.attention import paged_attention
from nanovllm.paging.cache import PagedCache
from nanovllm.performance.runner import StepRunner
from tests.processes import environment, lines_of
from tests.serving_tools import MODEL

PROMPTS = ["Once upon a time there was a little", "1, 2, 3, 4, 1, 2, 3, 4, 1, 2,", "12 + 30 ="]
GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)


def uncaptured(function, pool):
    return function, pool


@pytest.fixture
def on_graphs(monkeypatch):
    """LLM takes the GPU path, its captures replaced."""
    for module in ("paged_engines", "paged_level"):
        monkeypatch.setattr(f"nanovllm.llm.{module}.step_kind", lambda *_: "CUDA graphs")

    class Uncaptured(GpuEngine):
        __init__ = partialmethod(GpuEngine.__init__, capture=uncaptured)

    monkeypatch.setattr("nanovllm.gpu.engine.GpuEngine", Uncaptured)


def texts(llm: LLM) -> list[str]:
    found = [output.outputs[0].text for output in llm.generate(PROMPTS, GREEDY, False)]
    llm.runner.engine.check()
    return found


def broken(*args, **more):
    raise RuntimeError("CUDA error: no kernel image\nis available.")


def broken_from(method, number: int):
    """The method, which fails from its call of this number on."""
    calls = iter(range(10**6))
    return lambda *a, **more: (broken if next(calls) >= number else method)(*a, **more)


SAYS = (
    "nanovllm: the GPU path failed (RuntimeError: CUDA error: no kernel image is available); the "
    "plain step goes on in its place\n"
)


@pytest.mark.usefixtures("on_graphs")
@pytest.mark.parametrize(
    ("place", "number"),
    [
        ("__init__", 0),
        ("read", 3),
        *(
            pytest.param(*each, marks=pytest.mark.proof)
            for each in (("compute", 0), ("decode", 0), ("decode", 3), ("read", 0))
        ),
    ],
)
@pytest.mark.few(1)
def test_whatever_fails_in_the_gpu_path_the_plain_step_goes_on(
    place, number, monkeypatch, capsys
) -> None:
    want = texts_on_the_plain_step()
    if place == "read":
        from nanovllm.performance.launched_step import Launched

        monkeypatch.setattr(Launched, "tokens", broken_from(Launched.tokens, number))
    else:
        monkeypatch.setattr(StepRunner, place, broken_from(getattr(StepRunner, place), number))
    llm = LLM(max_num_seqs=3)
    assert texts(llm) == want
    assert capsys.readouterr().err == SAYS
    store = llm.runner.engine.store
    assert store.attention is paged_attention and type(store.cache) is PagedCache
    assert texts(llm) == want and capsys.readouterr().err == ""


def texts_on_the_plain_step() -> list[str]:
    from nanovllm.batching.config import EngineConfig
    from nanovllm.batching.engine import Engine

    llm = LLM(max_num_seqs=3)
    llm.rung.make_engine = lambda: Engine(
        llm.model, EngineConfig(max_num_seqs=3), tokenizer=llm.tokenizer
    )
    return texts(llm)


def test_without_a_name_it_is_the_cpu_also_where_there_is_a_gpu(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert read_options.read_device(None) == torch.device("cpu")


@pytest.mark.skipif(os.environ.get("NANOVLLM_TESTS_ON") == "cuda", reason="run to see the GPU")
def test_tests_see_no_gpu() -> None:
    assert not torch.cuda.is_available() and torch.cuda.device_count() == 0


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="this machine has Apple's GPU")
def test_a_device_that_is_not_here_is_one_sentence(monkeypatch) -> None:
    for name in ("mps", "cuda", "toaster"):
        with pytest.raises(OptionError, match=f"^device '{name}' is not here; .* or use cpu.$"):
            LLM(device=name)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    with pytest.raises(OptionError, match=r"or use cpu or mps\.$"):
        LLM(device="toaster")


@pytest.mark.parametrize("device", ["cuda:1", torch.device("cuda", 1)], ids=str)
def test_a_gpu_by_its_number_is_refused_with_the_way_to_it(device, monkeypatch) -> None:
    """Kernels and graphs run on a thread's current GPU, which is the first."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, device=None, **more: empty(*a, **more))
    with pytest.raises(OptionError, match=r"^device 'cuda:1' .* CUDA_VISIBLE_DEVICES=1 in"):
        read_options.read_device(device)
    assert read_options.read_device("cuda:0") == torch.device("cuda", 0)
    assert read_options.read_device("cuda") == torch.device("cuda")


def test_on_mps_one_sentence_says_what_was_not_run(monkeypatch, capsys) -> None:
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, device=None, **more: empty(*a, **more))
    assert read_options.read_device("mps") == torch.device("mps")
    said = capsys.readouterr().err
    assert "tests have run on CPUs only" in said and said.count("\n") == 1


def test_on_mps_the_step_would_be_the_plain_one(monkeypatch) -> None:
    from types import SimpleNamespace

    weight = SimpleNamespace(device=torch.device("mps"), dtype=torch.float32)
    monkeypatch.setattr("nanovllm.llm.paged_engines.weight_of", lambda model: weight)
    options = EngineOptions(enforce_eager=False)
    assert why_not_fast(MODEL, options) is not None
    assert step_kind(MODEL, options).startswith("plain: ")
    assert read_options.read_dtype(None, read_options.BUNDLED, "mps") is torch.float32


def test_nothing_of_cuda_or_triton_is_needed_away_from_a_gpu() -> None:
    program = """
import sys
class Away:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "triton" or name.startswith(("nanovllm.gpu", "nanovllm.kernels")):
            raise ImportError(f"{name} is not here")
sys.meta_path.insert(0, Away())
from nanovllm import LLM, SamplingParams
llm = LLM(enforce_eager=True)
print(llm.generate("12 + 30 =", SamplingParams(max_tokens=2), use_tqdm=False)[0].finished)
"""
    assert lines_of(program, env=environment()) == ["True"]
