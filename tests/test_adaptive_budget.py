"""`adaptive_token_budget`: lab 04's controller in the engine that a user starts."""

from __future__ import annotations

import pytest

from nanovllm import LLM, SamplingParams
from nanovllm.batching.events import Stepped
from nanovllm.llm import OptionError
from nanovllm.serving.app import Server
from nanovllm.serving.config import ServeConfig

PROMPTS = ["Once upon a time there was a little " * 6, "1, 2, 3, 4, " * 8, "12 + 30 ="]
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


def stepped(llm: LLM, seconds: float) -> tuple[list[str], list[Stepped]]:
    """The texts, and the steps, of an engine that takes every step to last so long."""
    engine, events = llm.runner.engine, []
    observe = engine.scheduler.observe
    engine.scheduler.observe = lambda _: observe(seconds)
    llm.runner.on_event = events.append
    texts = [o.outputs[0].text for o in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]
    engine.check()
    return texts, [event for event in events if isinstance(event, Stepped)]


@pytest.mark.parametrize("more", [{"enforce_eager": True}, {}, {"engine": "continuous"}], ids=str)
def test_steps_shrink_when_they_are_slow_and_texts_stay(more: dict) -> None:
    options = {"max_num_batched_tokens": 64, "max_num_seqs": 8, **more}
    want, fixed = stepped(LLM(**options), 0.2)
    assert {step.budget for step in fixed} == {64}
    texts, steps = stepped(LLM(adaptive_token_budget=True, **options), 0.2)
    assert texts == want
    assert [step.budget for step in steps][:6] == [64, 51, 40, 32, 25, 20]
    assert steps[-1].budget == 8  # a token for every seat


def test_metrics_and_the_curve_tell_its_decisions() -> None:
    llm = LLM(adaptive_token_budget=True, max_num_batched_tokens=64, max_num_seqs=8)
    server = Server(llm.runner.engine, ServeConfig(model_name="m"))
    _, steps = stepped(llm, 0.2)
    found = server.monitor
    for step in steps:
        for observe in server.engine.observers:
            observe([step], 0.0)
    budget = found.recent()["budget"]
    assert (budget["limit"], budget["highest"], len(budget["points"])) == (8, 64, len(steps))
    assert budget["decisions"]["slow"] == 9 and sum(budget["decisions"].values()) == len(steps)
    text = server.metrics.registry.text().decode()
    labels = '{decision="slow",engine="0",model_name="m"}'
    assert f"nanovllm:token_budget_decisions_total{labels} 9.0" in text
    assert 'nanovllm:token_budget_limit{engine="0",model_name="m"} 8.0' in text


def test_without_it_nothing_is_told() -> None:
    server = Server(LLM(enforce_eager=True).runner.engine, ServeConfig())
    assert server.monitor.recent()["budget"] is None
    assert b"token_budget" not in server.metrics.registry.text()


def test_bad_values_are_one_sentence() -> None:
    with pytest.raises(OptionError, match="adaptive_token_budget must be True or False, got 'yes'"):
        LLM(adaptive_token_budget="yes")
    with pytest.raises(OptionError, match="adaptive_token_budget needs lab04"):
        LLM(adaptive_token_budget=True, engine="static")
