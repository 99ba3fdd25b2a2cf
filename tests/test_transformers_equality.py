"""The engine, end to end, against transformers on the same checkpoint: same ids, same text."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
import transformers

from nanovllm import LLM, SamplingParams
from tests.tiny_checkpoint import SMALL, TARGET, save_random

PROMPTS = [
    "Once upon a time",
    "The capital of France is",
    "What is 3 + 4?",
    "Mia's code is 7342. Tom's code is 9185. What is Mia's code? Mia's code is",
    "a",
    "In the garden there was a little fox who wanted to find the red ball. One day, the fox",
    "naïve café — 東京 🦊 Ω\t\n\n  x",
    "1, 2, 3, 4, 5,",
]
GREEDY = SamplingParams(temperature=0.0, max_tokens=40)
TINY = {name: value for name, value in SMALL.items() if name != "head_dim"}
FAMILIES = {
    "qwen3": (transformers.Qwen3Config, {**TINY, "head_dim": 16}),
    "qwen3-tied": (transformers.Qwen3Config, {**TINY, "head_dim": 8, "tie_word_embeddings": True}),
    "qwen2": (transformers.Qwen2Config, TINY),
    "llama": (transformers.LlamaConfig, {**TINY, "rms_norm_eps": 1e-3}),
    "llama3-rope": (
        transformers.LlamaConfig,
        {**TINY, "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 24}},
    ),
    "mistral-window": (transformers.MistralConfig, {**TINY, "sliding_window": 8}),
    "gpt2": (
        transformers.GPT2Config,
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 96},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def bundled():
    tokenizer = transformers.AutoTokenizer.from_pretrained(TARGET)
    model = transformers.AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)
    return tokenizer, model.eval()


@pytest.fixture(scope="module")
def llm(bundled):
    return LLM()


def answer_of_transformers(tokenizer, model, ids, max_tokens):
    with torch.inference_mode():
        whole = model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            do_sample=False,
            max_new_tokens=max_tokens,
            pad_token_id=0,
        )
    new = whole[0, len(ids) :].tolist()
    return new, tokenizer.decode(new, skip_special_tokens=True, clean_up_tokenization_spaces=False)


@pytest.fixture(scope="module")
def expected(bundled):
    tokenizer, model = bundled
    return [
        answer_of_transformers(tokenizer, model, tokenizer.encode(prompt), 40) for prompt in PROMPTS
    ]


def test_ids_of_prompts(llm, bundled):
    tokenizer, _ = bundled
    outputs = llm.generate(PROMPTS, SamplingParams(max_tokens=1), use_tqdm=False)
    assert [o.prompt_token_ids for o in outputs] == [tokenizer.encode(p) for p in PROMPTS]


def test_greedy_batch(llm, expected):
    outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert [o.prompt for o in outputs] == PROMPTS
    assert [list(o.outputs[0].token_ids) for o in outputs] == [ids for ids, _ in expected]
    assert [o.outputs[0].text for o in outputs] == [text for _, text in expected]


def test_greedy_in_small_batches(bundled, expected):
    outputs = LLM(max_num_seqs=3).generate(PROMPTS, GREEDY, use_tqdm=False)
    assert [o.outputs[0].text for o in outputs] == [text for _, text in expected]


@pytest.mark.parametrize("i", range(len(PROMPTS)))
def test_greedy_single(llm, expected, i):
    (output,) = llm.generate(PROMPTS[i], GREEDY, use_tqdm=False)
    assert output.outputs[0].text == expected[i][1]
    steps = list(llm.stream(PROMPTS[i], GREEDY))
    assert "".join(step.text for step in steps) == expected[i][1]
    assert steps[-1].output.outputs[0].text == expected[i][1]


def test_chat(llm, bundled):
    tokenizer, model = bundled
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    (output,) = llm.chat(messages, GREEDY, use_tqdm=False)
    assert output.prompt_token_ids == ids
    assert output.outputs[0].text == answer_of_transformers(tokenizer, model, ids, 40)[1]


def test_long_prompt_across_the_context(llm, bundled):
    tokenizer, model = bundled
    text = " ".join(f"Day {i}: the dog found {i % 7} stones near the river." for i in range(80))
    ids = tokenizer.encode(text)[: llm.max_model_len - 30]
    assert len(ids) > llm.max_model_len // 2
    (output,) = llm.generate([ids], SamplingParams(temperature=0.0, max_tokens=20), use_tqdm=False)
    new, _ = answer_of_transformers(tokenizer, model, ids, 20)
    assert list(output.outputs[0].token_ids) == new


def test_beam_search(llm, bundled):
    tokenizer, model = bundled
    ids = tokenizer.encode("Once upon a time")
    with torch.inference_mode():
        whole = model.generate(
            torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            do_sample=False, num_beams=3, num_return_sequences=3, max_new_tokens=12,
            early_stopping=False, length_penalty=1.0, pad_token_id=0,
        )  # fmt: skip
    texts = [tokenizer.decode(row[len(ids) :], skip_special_tokens=True) for row in whole]
    (output,) = llm.beam_search(["Once upon a time"], beam_width=3, max_tokens=12)
    assert [answer.text for answer in output.outputs] == texts


@pytest.mark.parametrize("family", FAMILIES)
def test_random_checkpoints(family, tmp_path):
    make, options = FAMILIES[family]
    model = save_random(tmp_path, make, std=0.25, **options)
    # Not AutoTokenizer: for Qwen2 folders it puts Qwen2's own pattern over tokenizer.json's.
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    llm = LLM(tmp_path)
    params = SamplingParams(temperature=0.0, max_tokens=16, logprobs=2)
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        ids = tokenizer.encode(prompt)
        answer = output.outputs[0]
        new, text = answer_of_transformers(tokenizer, model, ids, 16)
        assert (list(answer.token_ids), answer.text) == (new, text), prompt
        with torch.inference_mode():
            logits = model(torch.tensor([ids + new])).logits[0, len(ids) - 1 : -1]
        theirs = logits.log_softmax(-1)[range(len(new)), new].tolist()
        ours = [at[token].logprob for at, token in zip(answer.logprobs, new, strict=True)]
        assert ours == pytest.approx(theirs, abs=2e-3)
