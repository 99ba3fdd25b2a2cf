"""Guesses for a user of the engine: the bundled models, transformers' counts, refusals."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from typer.testing import CliRunner

from nanovllm import LLM, SamplingParams
from nanovllm.batching.events import Stepped
from nanovllm.cli import app
from nanovllm.llm import OptionError
from tests.tiny_checkpoint import SMALL, TARGET, save_random

DRAFT = TARGET.parent / "draft"
PROMPTS = [
    "Once upon a time there was a little",
    "Mia's code is 7342. Tom's code is 1188. What is Mia's code?",
    "12 + 30 =",
    "1, 2, 3, 4, 1, 2, 3, 4, 1, 2,",
]
CONFIGS = {
    "ngram": {"method": "ngram"},
    "draft": {"method": "draft_model", "model": str(DRAFT)},
    "gumbel": {"method": "draft_model", "model": str(DRAFT), "draft_sample_method": "gumbel"},
    "both": {"method": "ngram_then_draft", "model": str(DRAFT), "adaptive": True},
}
PARAMS = {
    "greedy": SamplingParams(temperature=0, max_tokens=24),
    "sampled": SamplingParams(temperature=1.0, seed=3, n=2, max_tokens=24),
    "all": SamplingParams(temperature=0.8, top_p=0.9, repetition_penalty=1.2, min_tokens=20,
                          seed=5, stop=[" the", "."], max_tokens=24),
}  # fmt: skip


def ready(**options: object) -> LLM:
    llm = LLM(**options)
    if hasattr(llm.runner.engine, "wait"):
        llm.runner.engine.wait()
    return llm


def texts(llm: LLM, params: SamplingParams) -> list:
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    llm.runner.engine.check()
    return [[(a.text, a.token_ids, a.finish_reason) for a in o.outputs] for o in outputs]


@pytest.mark.few(2)
@pytest.mark.parametrize("eager", [True, False], ids=["plain", "compiled"])
@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
def test_texts_are_those_without_guesses(eager: bool, params: SamplingParams) -> None:
    wanted = texts(ready(enforce_eager=eager), params)
    for config in CONFIGS.values():
        assert texts(ready(enforce_eager=eager, speculative_config=config), params) == wanted


def test_logprobs_of_the_compiled_step_are_the_same_to_the_last_bit() -> None:
    params = SamplingParams(temperature=0, logprobs=3, max_tokens=30)
    found = [
        ready(enforce_eager=False, speculative_config=config).generate(PROMPTS, params, False)
        for config in (None, CONFIGS["draft"])
    ]
    for one, other in zip(*found, strict=True):
        assert one.outputs[0].logprobs == other.outputs[0].logprobs


@pytest.mark.parametrize("name", ["ngram", "draft"])
def test_target_forwards_are_as_many_as_transformers_needs(name: str) -> None:
    target, draft = (
        transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        for folder in (TARGET, DRAFT)
    )
    settings = draft.generation_config
    settings.num_assistant_tokens, settings.assistant_confidence_threshold = 4, 0
    settings.num_assistant_tokens_schedule = "constant"
    lookup = {"prompt_lookup_num_tokens": 4, "max_matching_ngram_size": 3}
    how = {"ngram": lookup, "draft": {"assistant_model": draft}}[name]
    forwards, steps = [], []
    target.register_forward_hook(lambda *_: forwards.append(1))
    llm = ready(enforce_eager=True, speculative_config=CONFIGS[name])
    llm.runner.on_event = lambda event: steps.append(1) if isinstance(event, Stepped) else None
    for prompt in PROMPTS:
        forwards.clear(), steps.clear()
        ids = llm.get_tokenizer().encode(prompt)
        out = target.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=48, **how)
        params = SamplingParams(temperature=0, max_tokens=48)
        [ours] = llm.generate(prompt, params, use_tqdm=False)
        assert list(ours.outputs[0].token_ids) == out[0, len(ids) :].tolist()
        assert len(steps) == len(forwards)


def test_rejection_sampling_by_name_gives_answers_that_depend_on_the_seed_alone() -> None:
    params = PARAMS["sampled"]
    for draft in ("greedy", "gumbel"):
        config = CONFIGS["draft"] | {"rejection_sample_method": "standard",
                                     "draft_sample_method": draft}  # fmt: skip
        first = texts(ready(speculative_config=config), params)
        assert first == texts(ready(speculative_config=config, max_num_seqs=1), params)
        assert first != texts(ready(), params)
    greedy = PARAMS["greedy"]
    assert texts(ready(speculative_config=config), greedy) == texts(ready(), greedy)


def test_a_stream_gives_every_token_of_a_guessed_run_by_itself() -> None:
    llm = ready(speculative_config=CONFIGS["draft"])
    pieces = list(llm.stream(PROMPTS[0], PARAMS["greedy"]))
    assert all(len(piece.token_ids) <= 1 for piece in pieces)
    told = [token for piece in pieces for token in piece.token_ids]
    assert told == list(pieces[-1].output.outputs[0].token_ids)


def test_drafts_that_cannot_serve_are_refused_at_the_start(tmp_path, capsys) -> None:
    def start(model: str, **more: object) -> LLM:
        return LLM(speculative_config={"method": "draft_model", "model": model, **more})

    with pytest.raises(OptionError, match=r"nowhere.* cannot be loaded"):
        start(str(tmp_path / "nowhere"))
    save_random(tmp_path / "small", **SMALL)
    config = transformers.Qwen3Config(vocab_size=64, **SMALL)
    transformers.Qwen3ForCausalLM(config).save_pretrained(tmp_path / "other")
    with pytest.raises(OptionError, match="has 64 tokens, the target 2048"):
        start(str(tmp_path / "other"))
    wanted = texts(ready(), SamplingParams(temperature=0, max_tokens=90, ignore_eos=True))
    llm = start(str(tmp_path / "small"))  # a context of 96 tokens
    assert "longer texts go on without its guesses" in capsys.readouterr().err
    assert texts(llm, SamplingParams(temperature=0, max_tokens=90, ignore_eos=True)) == wanted


def test_on_the_command_line() -> None:
    def run(*more: str) -> str:
        result = CliRunner().invoke(app, ["generate", PROMPTS[0], "--max-tokens", "20", *more])
        assert result.exit_code == 0, result.output
        return result.stdout

    config = json.dumps(CONFIGS["draft"])
    assert run("--speculative-config", config) == run()
