"""Log-probabilities of prompts, and masks, on every kind of step; beside transformers."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from nanovllm import LLM, SamplingParams
from nanovllm.batching.events import Preempted
from nanovllm.generation.errors import RequestError
from nanovllm.generation.events import Finished
from nanovllm.llm.read_options import BUNDLED
from nanovllm.llm.scoring import score_tokens
from tests.serving_tools import CONFIG, tiny_engine

TEXTS = [
    "Mia's code is 7342. What is Mia's code? " * 5,
    "The capital of",
    "a",
    "Once upon a time there was a dog. It ran to the big house. " * 6,
    "One dog and two cats. " * 12,
]
GUESSES = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
KINDS = {
    "compiled": {},
    "compiled, guesses": {"speculative_config": GUESSES},
    "plain, chunks": {"enforce_eager": True, "max_num_batched_tokens": 16, "max_num_seqs": 5},
    "plain, guesses": {"enforce_eager": True, "speculative_config": GUESSES},
    "preempted": {
        "num_gpu_blocks_override": 12, "max_num_batched_tokens": 32, "max_num_seqs": 5,
        "max_model_len": 192, "block_size": 16,
    },
}  # fmt: skip


@cache
def expected(ids: tuple[int, ...]) -> torch.Tensor:
    """transformers' log-probabilities behind each token."""
    with torch.inference_mode():
        return peer()(torch.tensor([ids])).logits[0].log_softmax(-1)


@cache
def peer() -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(BUNDLED, dtype=torch.float32)


def engine_of(llm: LLM) -> Any:
    engine = llm.runner.engine
    if hasattr(engine, "wait"):
        engine.wait()
    return engine


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.few(1)
def test_prompts_are_scored_as_by_transformers(kind: str) -> None:
    llm = LLM(dtype="float32", **KINDS[kind])
    engine = engine_of(llm)
    greedy = {"temperature": 0, "max_tokens": 64, "ignore_eos": True}
    params = [SamplingParams(prompt_logprobs=count, **greedy) for count in (0, 2, 1, 5, 1)]
    plain = llm.generate(TEXTS, SamplingParams(**greedy), use_tqdm=False)
    preempted: list[Preempted] = []
    llm.runner.on_event = lambda e: preempted.append(e) if isinstance(e, Preempted) else None
    for _ in range(2):  # what is cached by then has no logits, so it is computed again
        found = llm.generate(TEXTS, params, use_tqdm=False)
        assert [o.outputs[0].token_ids for o in found] == [o.outputs[0].token_ids for o in plain]
        for output, asked in zip(found, params, strict=True):
            ids, (first, *others) = output.prompt_token_ids, output.prompt_logprobs
            rows = expected(tuple(ids))
            assert first is None and len(others) == len(ids) - 1
            for row, token, entries in zip(rows, ids[1:], others, strict=False):
                best = row.topk(asked.prompt_logprobs).indices.tolist()
                assert set(entries) == {token, *best}
                for i, entry in entries.items():
                    assert entry.logprob == pytest.approx(float(row[i]), abs=1e-4)
                assert entries[token].rank == int((row >= row[token]).sum())
    assert bool(preempted) == (kind == "preempted")
    assert not engine._scores
    engine.check()


@pytest.mark.parametrize("kind", ["compiled", "compiled, guesses", "plain, guesses", "static"])
@pytest.mark.parametrize("sampled", [{"temperature": 0}, {"seed": 4}], ids=["greedy", "sampled"])
@pytest.mark.few(3)
def test_masks_hold_on_every_step(kind: str, sampled: dict[str, Any]) -> None:
    llm = LLM(dtype="float32", **({"engine": "static"} if kind == "static" else KINDS[kind]))
    allowed = llm.tokenizer.encode("The dog ran to a big house and said no yes it was")
    body = {"max_tokens": 20, "ignore_eos": True} | sampled
    masked = SamplingParams(allowed_token_ids=allowed, bad_words=["dog"], **body)
    free = SamplingParams(**body)
    found = llm.generate(["Once upon a time", "Once upon a time"], [masked, free], use_tqdm=False)
    ids = found[0].outputs[0].token_ids
    bad = {i for word in ("dog", " dog") if len(i_ := llm.tokenizer.encode(word)) == 1 for i in i_}
    assert set(ids) <= set(allowed) - bad and bad & set(allowed)
    assert found[1].outputs[0].token_ids == llm.generate(
        ["Once upon a time"], [free], use_tqdm=False
    )[0].outputs[0].token_ids  # fmt: skip
    if "temperature" in sampled:
        prompt = found[0].prompt_token_ids
        rows = expected((*prompt, *ids))[len(prompt) - 1 :]
        left = sorted(set(allowed) - bad)
        assert ids == [left[int(row[left].argmax())] for row in rows[: len(ids)]]


def test_rejection_sampling_keeps_the_masks() -> None:
    guesses = GUESSES | {"rejection_sample_method": "standard"}
    llm = LLM(dtype="float32", enforce_eager=True, speculative_config=guesses)
    allowed = llm.tokenizer.encode(" the dog ran to a big house")
    params = SamplingParams(allowed_token_ids=allowed, seed=3, max_tokens=40, ignore_eos=True)
    [found] = llm.generate(["the dog ran to a big house. the dog"], params, use_tqdm=False)
    assert set(found.outputs[0].token_ids) <= set(allowed)


def test_engines_that_cannot_score_say_so() -> None:
    for engine in ("static", "continuous"):
        with pytest.raises(RequestError, match="prompt_logprobs"):
            LLM(engine=engine).generate("a", SamplingParams(prompt_logprobs=1), use_tqdm=False)


def test_more_than_the_vocabulary_is_all_of_it() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 1.0, 0.0]])
    assert score_tokens(logits, [1, 0], 20) == score_tokens(logits, [1, 0], -1)
    assert [len(entries) for entries in score_tokens(logits, [1, 0], 20)] == [3, 3]


def test_masks_that_leave_no_token_at_all_are_refused() -> None:
    engine, every = tiny_engine(), range(CONFIG.vocab_size)
    for given in (
        {"bad_words_token_ids": [[i] for i in every]},
        {"min_tokens": 1, "stop_token_ids": [*every]},
        {"min_tokens": 1, "stop_token_ids": [*every[1::2]],
         "bad_words_token_ids": [[i] for i in every[::2]]},
    ):  # fmt: skip
        with pytest.raises(RequestError, match="forbid every token"):
            engine.add_request([5, 6], SamplingParams(max_tokens=3, **given))
    one_left = SamplingParams(max_tokens=3, bad_words_token_ids=[[i] for i in every if i != 7])
    no_doubles = SamplingParams(max_tokens=3, bad_words_token_ids=[[i, i] for i in every])
    for params in (one_left, no_doubles):
        engine.add_request([5, 6], params)
    told = [e.completion.token_ids for e in engine.run() if isinstance(e, Finished)]
    assert (7, 7, 7) in told and len(told) == 2


def test_salts_of_prompts_keep_them_apart() -> None:
    llm = LLM(enforce_eager=True)
    prompt = {"prompt": TEXTS[0]}
    asked = [prompt, prompt | {"cache_salt": "a"}, prompt, prompt | {"cache_salt": "a"}]
    params = SamplingParams(max_tokens=1)
    found = [llm.generate(one, params, use_tqdm=False)[0].num_cached_tokens for one in asked]
    assert found[:2] == [0, 0] and found[2] == found[3] > 16


def test_a_last_message_goes_on_offline() -> None:
    llm = LLM()
    messages = [
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": "The capital of"},
    ]
    [found] = llm.chat(
        messages, SamplingParams(temperature=0, max_tokens=6), use_tqdm=False,
        continue_final_message=True, add_generation_prompt=False,
    )  # fmt: skip
    assert found.prompt.endswith("The capital of")
    assert found.outputs[0].text.startswith(" France is Paris")
    with pytest.raises(RequestError, match="add_generation_prompt"):
        llm.chat(messages, continue_final_message=True)
