"""`speculative_config` beside every other option: the rows of the README's table, one by one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

from nanovllm import LLM, SamplingParams, StructuredOutputsParams
from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.events import Preempted, Stepped
from nanovllm.batching.request import Priority
from nanovllm.generation.events import Finished
from nanovllm.generation.params import ParamsError
from nanovllm.llm import OptionError
from nanovllm.llm.guessing import Guessing
from nanovllm.paging.store import PagedStore
from nanovllm.speculative.config import SpeculativeConfig
from nanovllm.speculative.errors import SpeculationError
from tests.processes import ROOT, run, run_apart
from tests.readme_tables import options_beside
from tests.serving_tools import CONFIG, MODEL
from tests.tiny_checkpoint import TARGET

DRAFT = TARGET.parent / "draft"
GUESSES = {"method": "ngram_then_draft", "model": str(DRAFT), "num_speculative_tokens": 3}
PROMPTS = ["Once upon a time there was a little", "1, 2, 3, 4, 1, 2, 3, 4, 1, 2,", "12 + 30 ="]
GREEDY = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.9, seed=4, max_tokens=32)
POLICIES = (
    "fcfs",
    "sjf",
    "deadline",
    "round-robin",
    "priority",
    "priority-with-ageing",
    "size-queues",
)


def with_guesses(guesses: dict = GUESSES, **options: object) -> LLM:
    return LLM(**{"enforce_eager": True, **options}, speculative_config=guesses)


@cache
def without(**options: object) -> LLM:
    return LLM(**{"enforce_eager": True, **options})


def answers(llm: LLM, params: SamplingParams) -> list:
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    llm.runner.engine.check()
    return [[(a.text, a.token_ids, a.finish_reason) for a in o.outputs] for o in outputs]


def same(llm: LLM, params: SamplingParams = SAMPLED, **options: object) -> list:
    """The texts, which are those without guesses; some guesses stood. Gives the events."""
    events: list = []
    llm.runner.on_event = events.append
    assert answers(llm, params) == answers(without(**options), params)
    assert any(run.accepted for e in events if isinstance(e, Stepped) for run in e.chunks)
    return events


def prefix_caching() -> None:
    for on in (True, False):
        same(with_guesses(enable_prefix_caching=on))


def chunked() -> None:
    events = same(with_guesses(max_num_batched_tokens=6, max_num_seqs=3))
    assert max(sum(c.length for c in e.chunks) for e in events if isinstance(e, Stepped)) <= 6


def seqs() -> None:
    for most in (1, 2):
        same(with_guesses(max_num_seqs=most))


def blocks() -> None:
    events = same(with_guesses(num_gpu_blocks_override=5), GREEDY)
    assert any(isinstance(event, Preempted) for event in events)
    same(with_guesses(block_size=48, kv_cache_memory_bytes=1 << 22))


def engine_texts(kind: Callable[..., Engine], **store: object) -> dict[int, tuple[int, ...]]:
    """Six requests of a tiny model, of several priorities and deadlines, which share few blocks."""
    config = EngineConfig(max_num_seqs=4, policy="priority")
    engine, found = kind(MODEL, config, store=PagedStore(CONFIG, 12, 4, **store)), {}
    params = SamplingParams(temperature=1, logit_bias={5: 50, 6: 50}, max_tokens=14)
    for i in range(6):
        engine.add_request([7 + i] * 9, params, seed=i, priority=list(Priority)[i % len(Priority)],
                           deadline=1.0 + i)  # fmt: skip
    while engine.has_unfinished:
        for event in engine.step():
            if isinstance(event, Finished):
                found[event.request_id] = event.completion.token_ids
        engine.check()
    return found


def on_blocks(**store: object) -> None:
    ngram = Guessing(SpeculativeConfig(method="ngram"), None).on(Engine)
    assert engine_texts(ngram, **store) == engine_texts(Engine)


def policies() -> None:
    for policy in POLICIES:
        same(with_guesses(scheduling_policy=policy, max_num_seqs=2))


def bfloat16() -> None:
    options = {"dtype": "bfloat16", "enforce_eager": False}
    llm = with_guesses(**options)
    for one in (llm, without(**options)):
        if not hasattr(one.runner.engine, "wait"):
            pytest.skip("there is no compiled step here")
        one.runner.engine.wait()
    same(llm, **options)


def compiled() -> None:
    same(with_guesses(enforce_eager=False))


def standard() -> None:
    llm = with_guesses(GUESSES | {"rejection_sample_method": "standard"})
    assert answers(llm, GREEDY) == answers(without(), GREEDY)
    assert answers(llm, SAMPLED) != answers(without(), SAMPLED)


def beams() -> None:
    found = [llm.beam_search(PROMPTS[0], beam_width=3, max_tokens=8)[0].outputs
             for llm in (with_guesses(), without())]  # fmt: skip
    assert found[0] == found[1]


def each(*params: dict) -> Callable[[], None]:
    def check() -> None:
        llm = with_guesses()
        for given in params:
            same(llm, SamplingParams(**{"max_tokens": 32, "temperature": 0.9, "seed": 4} | given))

    return check


def slots() -> None:
    for engine in ("continuous", "static"):
        with pytest.raises(OptionError, match="speculative_config needs lab05"):
            with_guesses(engine=engine)
    ngram = Guessing(SpeculativeConfig(method="ngram"), None).on(Engine)
    with pytest.raises(SpeculationError, match="guesses need a store of blocks"):
        ngram(MODEL)


def too_many() -> None:
    with pytest.raises(OptionError, match="num_speculative_tokens is 40, but a token"):
        with_guesses({"method": "ngram", "num_speculative_tokens": 40}, num_gpu_blocks_override=2)
    with pytest.raises(OptionError, match="must fit into 19 places"):
        with_guesses({"method": "ngram", "num_speculative_tokens": 20}, max_model_len=20)


def edited(folder: Path, file: str, change: Callable[[dict], object]) -> dict:
    """The draft with one of its JSON files changed."""
    made = folder / file
    shutil.copytree(DRAFT, made)
    data = json.loads((made / file).read_text("utf-8"))
    change(data)
    (made / file).write_text(json.dumps(data), "utf-8")
    return GUESSES | {"model": str(made)}


def unknown() -> None:
    with pytest.raises(ParamsError, match="no parameter 'best_of'"):
        SamplingParams(best_of=2)


ROWS: dict[str, Callable[[], None]] = {
    "`enable_prefix_caching`, on or off": prefix_caching,
    "`max_num_batched_tokens`: prompts in chunks": chunked,
    "`max_num_seqs`": seqs,
    "`block_size`, `num_gpu_blocks_override`, `kv_cache_memory_bytes`": blocks,
    "preemption by swap (`PagedStore`)": lambda: on_blocks(preemption="swap", num_host_blocks=8),
    "`scheduling_policy`, each of them": policies,
    "priorities and deadlines (`Engine.add_request`)": on_blocks,
    "`max_model_len`": lambda: same(with_guesses(max_model_len=40), max_model_len=40),
    '`dtype="bfloat16"`': bfloat16,
    "`enforce_eager`, on or off": compiled,
    "`n`, `logprobs`, `seed`": each({"n": 3}, {"logprobs": 2, "seed": 9}),
    "penalties, `logit_bias`, `top_k`, `top_p`, `min_p`": each(
        {"repetition_penalty": 1.2}, {"presence_penalty": 0.5, "frequency_penalty": 0.4},
        {"logit_bias": {300: 3.0}}, {"top_k": 5}, {"top_p": 0.8, "min_p": 0.05},
    ),
    "`stop`, `stop_token_ids`, `min_tokens`, `ignore_eos`": each(
        {"stop": [" the", "."]}, {"stop_token_ids": list(range(300, 340))},
        {"min_tokens": 31, "stop": ["."]}, {"ignore_eos": True},
    ),
    "`allowed_token_ids`, `bad_words`, `prompt_logprobs`, `cache_salt`": each(
        {"allowed_token_ids": list(range(300, 500))}, {"bad_words": ["the", "little girl"]},
        {"prompt_logprobs": 1}, {"cache_salt": "mine"},
    ),
    "`structured_outputs`, each kind": each(
        *({"structured_outputs": StructuredOutputsParams(**given)} for given in (
            {"regex": r"( (the|a|little|girl|boy|[0-9]+),?)*"}, {"json_object": True},
            {"grammar": 'root ::= ( " the" | " girl" | " 2," | " 3," | " 4," | " 1," )*'},
            {"choice": [" girl named Mia. She lived in a small town.", " 3, 4, 1, 2, 3, 4, 1, 2"]},
        ))
    ),
    "`beam_search`": beams,
    '`rejection_sample_method="standard"`': standard,
    '`engine="continuous"` or `"static"` (slots)': slots,
    "more guesses than the KV cache or the context holds": too_many,
    "`best_of`": unknown,
}  # fmt: skip


LONG = ("penalties, `logit_bias`, `top_k`, `top_p`, `min_p`", "`structured_outputs`, each kind")
CHECKS = [
    pytest.param(check, id=name, marks=[pytest.mark.proof] if name in LONG else [])
    for name, check in ROWS.items()
]


@pytest.mark.few(6)
@pytest.mark.parametrize("check", CHECKS)
def test_option(check: Callable[[], None]) -> None:
    check()


def test_the_table_in_the_readme_has_these_rows() -> None:
    drafts = "a draft with another vocabulary, tokenizer or other end tokens"  # below
    options, refused = options_beside("with guesses")
    assert [row for row in options if row != drafts] == list(ROWS)
    assert {*refused} == {drafts, *list(ROWS)[-3:]}


def test_drafts_with_other_tokens_are_refused(tmp_path: Path) -> None:
    def swap(data: dict) -> None:
        vocab = data["model"]["vocab"]
        first, second = list(vocab)[300:302]
        vocab[first], vocab[second] = vocab[second], vocab[first]

    with pytest.raises(OptionError, match="has another tokenizer than the target"):
        with_guesses(edited(tmp_path, "tokenizer.json", swap))
    with pytest.raises(OptionError, match=r"ends texts with tokens \[0, 2, 7\]"):
        with_guesses(edited(tmp_path, "config.json", lambda data: data.update(eos_token_id=7)))


BAD = {
    '["ngram"]': "must be a dict, such as {'method': 'ngram'}, got ['ngram']",
    "{ngram}": "--speculative-config is not JSON",
    "{}": "needs a method: ngram, draft_model, ngram_then_draft",
    '{"method": "eagle"}': "method 'eagle' is not known; use ngram",
    '{"method": "ngram", "num_speculative_token": 3}': "did you mean num_speculative_tokens?",
    '{"method": "ngram", "num_speculative_tokens": 2.0}': "must be a whole number",
    '{"method": "ngram", "num_speculative_tokens": 5000}': "must fit into 1023 places",
    '{"method": "ngram", "model": "models/draft"}': "has no draft model, but model is",
    '{"method": "draft_model"}': 'add "model": a folder or hub name',
    '{"method": "draft_model", "model": "/nowhere"}': "'/nowhere' cannot be loaded: there is no",
    '{"method": "draft_model", "model": "tests"}': "'tests' cannot be loaded: tests/config.json",
}


@pytest.mark.parametrize(
    "command",
    [["generate", "a"], ["chat"], ["serve"], ["bench", "throughput", "-m", "bundled"],
     ["bench", "latency", "-m", "bundled"], ["bench", "serve", "--num-prompts", "1"]],
    ids=" ".join,
)  # fmt: skip
def test_on_every_command_bad_settings_are_one_sentence(command: list[str]) -> None:
    apart = "bench" in command  # these start a process
    for given, says in list(BAD.items())[: 2 if apart else None]:
        done = run(*command, "--speculative-config", given)
        assert done.returncode == 2 and says in done.stderr, (given, done.stderr)
        assert done.stderr.strip().count("\n") == 0 and "Traceback" not in done.stderr


def test_a_proposer_that_fails_costs_its_guesses_alone(capsys, monkeypatch) -> None:
    wanted = answers(without(), SAMPLED)
    for proposes, says in (
        (lambda self, asks: 1 / 0, "guesses are dropped, for the proposer failed: ZeroDivision"),
        (lambda self, asks: [torch.zeros(2)], "guesses are dropped, for the proposer failed:"),
        (outside, "a guess is token 99999, but ids go from 0 to 2047; it is dropped"),
    ):
        monkeypatch.setattr("nanovllm.speculative.lookup.PromptLookup.propose", proposes)
        assert answers(with_guesses({"method": "ngram"}), SAMPLED) == wanted
        err = capsys.readouterr().err
        assert err.count("nanovllm: ") == 1 and says in err, err


def test_prompt_lookup_runs_before_the_rest_of_lab_08_is_written(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "solutions" / "nanovllm" / "speculative", tmp_path / "speculative")
    for file in ("adaptive.py", "draft_model.py"):  # they start empty
        (tmp_path / "speculative" / file).write_text("")
    ask = ["generate", PROMPTS[1], "--max-tokens", 12, "--speculative-config"]
    env = {"NANOVLLM_MINE": str(tmp_path), "NANOVLLM_CODE": ""}
    done = run_apart(*ask, '{"method": "ngram"}', env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout == run_apart(*ask[:-1]).stdout
    unwritten = run_apart(*ask, '{"method": "ngram", "adaptive": true}', env=env)
    assert unwritten.returncode != 0 and "AdaptivePolicy" in unwritten.stderr


def outside(self: object, asks: list) -> list:
    from nanovllm.speculative.proposer import Guesses

    return [Guesses((5, 99999, 5), "ngram") for _ in asks]
