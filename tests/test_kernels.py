"""The kernels in the engine, their launches, and what was not verified."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

from grader.course.errors import LabError
from grader.course.hardware import NOT_VERIFIED, obstacle, unverified
from grader.course.lab_toml import Lab, find_lab
from grader.student import kernels
from nanovllm.batching.config import EngineConfig
from nanovllm.batching.offline import generate_continuous
from nanovllm.generation.params import SamplingParams
from nanovllm.llm.paged_engines import EngineOptions, make_store, why_not_fast
from nanovllm.llm.paged_store import attention_backend, paged_store
from nanovllm.llm.read_options import OptionError
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model
from nanovllm.paging.attention import paged_attention

CONFIG = ModelConfig("llama", 40, 16, 2, 4, 2, 8, 24, 64, windows=(None, 5), eos_token_ids=(2,))


@pytest.mark.parametrize("chunk", [None, 3])
def test_the_engine_says_the_same_with_and_without_kernels(chunk: int | None) -> None:
    model = dummy_model(CONFIG, seed=3)
    prompts = [[5, 6, 7, 8, 9], [5, 6, 7, 11], [30]]
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    done = {}
    for name in ("torch", "triton"):
        store = paged_store(CONFIG, 12, 4, attention=name)
        config = EngineConfig(max_num_seqs=2, max_num_batched_tokens=8, max_chunk=chunk)
        result = generate_continuous(model, prompts, params, config, store=store)
        done[name] = [sample[0].token_ids for sample in result.completions]
    assert done["triton"] == done["torch"]
    assert [len(tokens) for tokens in done["torch"]] == [4, 4, 4]


def test_the_backend_follows_the_device_and_can_be_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert [attention_backend(device) for device in ("cpu", "cuda:0")] == ["torch", "triton"]
    monkeypatch.setenv("NANOVLLM_ATTENTION", "triton")
    assert attention_backend("cpu") == "triton"
    assert attention_backend("cpu", "torch") == "torch"
    with pytest.raises(OptionError, match="must be torch or triton"):
        attention_backend("cpu", "flash")


def test_torch_attention_loads_no_triton_kernels() -> None:
    code = (
        "import sys; from nanovllm.llm.paged_store import paged_store; "
        "from nanovllm.model.config import ModelConfig; "
        "paged_store(ModelConfig('llama', 9, 4, 1, 2, 1, 2, 8, 16), 2); "
        "print([name for name in sys.modules if name.startswith('nanovllm.kernels')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_llm_reads_its_blocks_by_the_chosen_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    model, options = dummy_model(CONFIG), EngineOptions(num_gpu_blocks_override=12, block_size=4)
    assert make_store(model, 64, options).attention is paged_attention
    monkeypatch.setenv("NANOVLLM_ATTENTION", "triton")
    assert make_store(model, 64, options).attention is not paged_attention
    compiled = EngineOptions(enforce_eager=False)
    assert why_not_fast(model, compiled) == "attention is to run on lab 06's kernels"


@pytest.mark.skipif(sys.platform == "darwin", reason="there is no Triton on macOS")
@pytest.mark.parametrize("to", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("of", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_the_interpreter_rounds_as_torch_does(of: torch.dtype, to: torch.dtype) -> None:
    from nanovllm.kernels.add import add

    bits = torch.randint(-(2**31), 2**31, (4096,), generator=torch.Generator().manual_seed(0))
    any_float = bits.to(torch.int32).view(torch.float32)  # every exponent, subnormal, inf, NaN
    x = torch.cat([any_float, torch.linspace(-3, 3, 999)]).to(of)
    got = add(x, torch.zeros_like(x), torch.empty(x.shape, dtype=to))
    assert torch.equal(got.nan_to_num(7), x.float().to(to).nan_to_num(7))


@pytest.mark.skipif(sys.platform == "darwin", reason="there is no Triton on macOS")
def test_an_address_outside_of_all_tensors_is_refused() -> None:
    from nanovllm.kernels import runtime
    from nanovllm.kernels.add import add_kernel

    assert runtime.INTERPRETED or torch.cuda.is_available()
    if not runtime.INTERPRETED:
        pytest.fail("run this file with TRITON_INTERPRET=1: a GPU does not refuse addresses")
    x = torch.ones(4)
    with pytest.raises(IndexError, match=r"program \(0, 0, 0\) loads \d+ of 2048 elements outside"):
        runtime.launch(add_kernel, (1,), x, x, x, 2048, 1, 1, 1, BLOCK=2048)


def test_passes_in_the_interpreter_are_marked() -> None:
    assert obstacle(find_lab(6)) == ""
    in_triton = [find_lab(6).task(1), find_lab(9).task(6)]
    assert [task.machine for task in in_triton] == ["triton"] * 2
    wanted = "" if torch.cuda.is_available() else NOT_VERIFIED
    assert [unverified(task) for task in in_triton] == [wanted] * 2
    assert unverified(find_lab(5).task(1)) == unverified(find_lab(9).task(1)) == ""


def test_without_triton_there_is_one_clear_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    sentence = obstacle(find_lab(6))
    assert sentence.startswith("lab06 needs Triton, and there is none for Darwin: do it on a Linux")
    assert obstacle(find_lab(1)) == obstacle(find_lab(9)) == ""  # one task of it needs Triton


def test_kernels_that_are_nowhere_are_told_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lab, "reference", tmp_path / "none")
    with pytest.raises(LabError, match=r"^lab06 is not started; `lab start 06` starts it\.$"):
        kernels.show(find_lab(6), None, Console())


def test_code_that_cannot_be_compiled_is_told_in_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise RuntimeError("SyntaxError: '(' was never closed (silu.py, line 9)")

    monkeypatch.setattr(kernels, "compiled", refuse)
    assert not kernels.show(find_lab(6), 4, Console())
    assert "task 4 is not compiled: SyntaxError: '(' was never closed" in capsys.readouterr().out
