"""Every pair of engine options: works, with equal texts, or is refused in one sentence."""

from __future__ import annotations

from functools import cache

import pytest

from nanovllm import LLM, SamplingParams
from nanovllm.llm import OptionError
from nanovllm.llm.engine_options import EngineOptions
from nanovllm.llm.option_pairs import OPTIONS, Option, compacts, pairs, refused, table
from tests.processes import ROOT

PROMPTS = ["Once upon a time there was a little cat. " * 4, "1, 2, 3, 4, " * 5, "12 + 30 ="]
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
# On a CPU always refused; with a table and tests of their own (test_parallel_options.py).
NOT_IN_PAIRS = {
    "gpu_memory_utilization", "tensor_parallel_size", "pipeline_parallel_size",
    "distributed_executor_backend", "executor_timeout",
}  # fmt: skip


def texts(**options: object) -> list[str]:
    llm = LLM(**{"enforce_eager": False} | options)
    if hasattr(llm.runner.engine, "wait"):
        llm.runner.engine.wait()
    found = [output.outputs[0].text for output in llm.generate(PROMPTS, GREEDY, False)]
    llm.runner.engine.check()
    return found


@cache
def alone(codes: tuple[tuple[str, object], ...]) -> list[str]:
    """The texts with these options, which change the numbers, and no others."""
    return texts(enforce_eager=True, **dict(codes))


def check(one: Option, other: Option) -> None:
    given = {each.name: each.value for each in (one, other)}
    if refused(one, other):
        with pytest.raises(OptionError) as error:
            LLM(**given)
        said = str(error.value)
        assert "\n" not in said and said.endswith(".")
        assert any(name in said for name in given), said
        return
    codes = tuple((each.name, each.value) for each in (one, other) if each.codes)
    assert texts(**given) == alone(codes)


ALL = list(pairs())


@pytest.mark.parametrize("pair", [p for p in ALL if refused(*p)] + ALL[::9], ids=str)
@pytest.mark.few(8)
def test_some_pairs(pair: tuple[Option, Option]) -> None:
    check(*pair)


@pytest.mark.proof
@pytest.mark.parametrize("first", OPTIONS, ids=lambda option: option.label)
def test_every_pair(first: Option) -> None:
    for pair in ALL:
        if pair[0] is first:
            check(*pair)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.label)
@pytest.mark.few(4)
def test_compact_with_each_option(option: Option) -> None:
    llm = LLM(**{"enforce_eager": False} | {option.name: option.value})
    if hasattr(llm.runner.engine, "wait"):
        llm.runner.engine.wait()
    before = [output.outputs[0].text for output in llm.generate(PROMPTS, GREEDY, False)]
    if not compacts(option):
        with pytest.raises(OptionError, match="compact"):
            llm.compact(num_blocks=8)
        return
    assert llm.compact(num_blocks=8).num_blocks == 8
    assert before == [output.outputs[0].text for output in llm.generate(PROMPTS, GREEDY, False)]
    llm.runner.engine.check()


def test_every_option_of_the_engine_is_in_a_pair() -> None:
    fields = set(EngineOptions.__dataclass_fields__)
    assert fields - {option.name for option in OPTIONS} == NOT_IN_PAIRS


def test_the_page_is_what_the_declaration_says() -> None:
    wanted = table() + "\n"
    page = (ROOT / "OPTION_PAIRS.md").read_text("utf-8")
    assert page == wanted, "run: python -m nanovllm.llm.option_pairs > OPTION_PAIRS.md"
