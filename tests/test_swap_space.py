"""`swap_space`: preempted requests go to host memory on every engine, where the costs say so."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nanovllm import LLM, SamplingParams
from nanovllm.batching.events import Preempted
from nanovllm.llm import OptionError
from nanovllm.llm.engine_options import GIB, host_memory
from nanovllm.serving.app import Server
from nanovllm.serving.config import ServeConfig
from nanovllm.serving.snapshot import kv_facts
from tests.processes import run

PROMPTS = ["Once upon a time there was a little", "1, 2, 3, 4, 1, 2, 3, 4, 1, 2,", "12 + 30 ="]
GREEDY = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
SCARCE = {"num_gpu_blocks_override": 7, "max_model_len": 100, "swap_space": 0.01}
ENGINES = {
    "compiled": {"enforce_eager": False},
    "compiled, int8": {"enforce_eager": False, "kv_cache_dtype": "int8"},
    "plain": {"enforce_eager": True},
    "plain, int4": {"kv_cache_dtype": "int4"},
    "compiled, guesses": {"enforce_eager": False, "speculative_config": {"method": "ngram"}},
}
FREE, DEAR = (1e30, 1e-30), (1e-30, 1e30)  # bytes a second, tokens a second


def ready(**options: object) -> LLM:
    llm = LLM(**options)
    if options.get("enforce_eager") is False:
        assert llm.rung.step == "compiled" and llm.runner.engine.wait()
    return llm


def texts(llm: LLM) -> list[str]:
    found = [o.outputs[0].text for o in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]
    llm.runner.engine.check()
    return found


def priced(llm: LLM, costs: tuple[float, float]) -> dict:
    """What swapping did while three requests shared few blocks, at these costs."""
    swapping = llm.runner.engine.store.swapping
    swapping.bytes_per_second, swapping.tokens_per_second = costs
    swapping.copied = lambda moves, seconds: type(swapping).copied(swapping, moves, 0.0)
    swapping.end = lambda plan: None  # no measurement changes the costs
    events: list = []
    llm.runner.on_event = events.append
    llm.found = texts(llm)
    facts = swapping.facts()
    preempted = sum(isinstance(event, Preempted) for event in events)
    assert facts["num_swapped"] + facts["num_recomputed"] == preempted > 0
    assert facts["used_bytes"] == 0  # all came back
    return facts


@pytest.mark.few(2)
@pytest.mark.parametrize("options", ENGINES.values(), ids=ENGINES)
def test_every_engine_swaps_where_it_pays_and_nobodys_text_changes(options: dict) -> None:
    want = texts(ready(**options))
    llm = ready(**SCARCE, **options)
    facts = priced(llm, FREE)
    assert llm.found == want and facts["num_recomputed"] == 0
    assert facts["bytes_out"] >= facts["bytes_in"] > 0
    assert facts["bytes_out"] % (16 * llm.kv_bytes_per_token) == 0
    llm = ready(**SCARCE, **options)
    facts = priced(llm, DEAR)
    assert llm.found == want and facts["num_swapped"] == facts["bytes_out"] == 0
    assert llm.runner.engine.store.manager.swap.pool.num_used == 0


def test_both_rates_are_measured() -> None:
    llm = ready(**SCARCE, enforce_eager=True)
    swapping = llm.runner.engine.store.swapping
    assert swapping.bytes_per_second > 0 and swapping.tokens_per_second is None
    texts(llm)
    assert swapping.tokens_per_second > 0


def test_without_it_nothing_is_measured_and_metrics_are_as_they_were() -> None:
    engine = LLM(enforce_eager=True).runner.engine
    assert engine.store.swapping is None and kv_facts(engine.store)["swap"] is None
    assert b"swap" not in Server(engine, ServeConfig()).metrics.registry.text()


def test_metrics_count_the_bytes() -> None:
    llm = ready(**SCARCE, enforce_eager=True)
    server = Server(llm.runner.engine, ServeConfig())
    facts = priced(llm, FREE)
    for _ in range(2):  # nothing is counted twice
        for observe in server.engine.observers:
            observe([], 0.0)
    found = {s.name: s.value for family in text_string_to_metric_families(
        server.metrics.registry.text().decode()) for s in family.samples}  # fmt: skip
    assert found["nanovllm:kv_swap_out_bytes_total"] == facts["bytes_out"] > 0
    assert found["nanovllm:kv_swap_in_bytes_total"] == facts["bytes_in"] > 0
    assert found["nanovllm:num_swapped_total"] == facts["num_swapped"]
    assert found["nanovllm:kv_swap_used_bytes"] == 0
    assert kv_facts(llm.runner.engine.store)["swap"] == facts


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (-1, "0 or more; got -1"),
        ("4", "must be a number of GiB"),
        (True, "must be a number of GiB"),
        (float("nan"), "must be a number of GiB"),
        (host_memory() / GIB + 1, "but this machine has"),
        (1e-6, "but one block of 16 tokens takes 65536 bytes"),
    ],
)
def test_bad_sizes_are_one_sentence(given: object, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        LLM(swap_space=given)


@pytest.mark.parametrize("name", ["num_gpu_blocks_override", "kv_cache_memory_bytes"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_more_than_the_machine_has_is_one_sentence(name: str, ranks: int) -> None:
    with pytest.raises(OptionError, match=f"this machine has .* give a smaller {name}"):
        LLM(**{name: 1 << 50, "tensor_parallel_size": ranks})


def test_slots_have_nothing_to_swap_and_the_command_says_so() -> None:
    with pytest.raises(OptionError, match="swap_space needs lab05"):
        LLM(swap_space=1, engine="continuous")
    done = run("generate", "a", "--swap-space", "1e6")
    assert done.returncode == 2 and "but this machine has" in done.stderr
    assert done.stderr.count("\n") == 1
