"""The bundled models are what their card says."""

import json
from pathlib import Path
from random import Random

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from models.checkpoint import load_network
from models.corpus import Mixture, document, plain
from models.corpus.facts import FACTS
from models.corpus.recall import announce, answer
from models.measure import BUCKETS
from models.questions import (
    fact_chat_questions,
    fact_plain_questions,
    recall_question,
    rights,
    share_right,
)
from models.rows import encode

MODELS = Path(__file__).parent.parent / "models"
NAMES = ("target", "draft")


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(MODELS / "target")


@pytest.fixture(scope="module")
def target():
    return load_network("target")


@pytest.fixture(scope="module")
def measured() -> dict:
    return json.loads((MODELS / "measured.json").read_text())


@pytest.mark.parametrize("name, low, high", [("target", 3e6, 8e6), ("draft", 1e5, 1e6)])
def test_loads_through_transformers_with_the_promised_size(name, low, high):
    model = AutoModelForCausalLM.from_pretrained(MODELS / name)
    assert model.config.model_type == "qwen3"
    assert model.dtype == torch.bfloat16
    assert model.config.tie_word_embeddings
    assert model.config.num_key_value_heads < model.config.num_attention_heads
    assert low < sum(p.numel() for p in model.parameters()) < high


def test_weights_are_small_together():
    weights = [MODELS / name / "model.safetensors" for name in NAMES]
    assert sum(path.stat().st_size for path in weights) < 25e6


def test_both_models_have_the_same_tokenizer():
    for file in ("tokenizer.json", "tokenizer_config.json"):
        assert (MODELS / "target" / file).read_bytes() == (MODELS / "draft" / file).read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_generation_ends_at_the_end_of_a_turn_and_of_a_text(name, tokenizer):
    config = json.loads((MODELS / name / "generation_config.json").read_text())
    ends = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    assert config["eos_token_id"] == ends


@pytest.mark.parametrize("name", NAMES)
def test_training_network_is_the_transformers_network(name):
    ids = torch.randint(0, 2048, (2, 40), generator=torch.Generator().manual_seed(0))
    model = AutoModelForCausalLM.from_pretrained(MODELS / name, dtype=torch.float32)
    ours = load_network(name)(ids, torch.arange(40).expand(2, -1))
    torch.testing.assert_close(ours, model(ids).logits, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "text",
    [
        "Mia's code is 7342.",
        "naïve café",
        "日本語",
        "привет мир",
        "👩‍🚀🦊",
        "a\n\n\tb   c ",
        " leading",
        "\x00\x7f\u200b",
        "",
    ],
)
def test_any_text_round_trips(tokenizer, text):
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_every_byte_is_in_the_vocabulary(tokenizer):
    from tokenizers.pre_tokenizers import ByteLevel

    assert len(tokenizer) == 2048
    assert set(ByteLevel.alphabet()) <= set(tokenizer.get_vocab())


def test_digits_go_in_pairs_and_nothing_is_added(tokenizer):
    assert tokenizer.tokenize("7342") == ["73", "42"]
    assert len(tokenizer("7342")["input_ids"]) == 2
    pairs = [f"{pair:02d}" for pair in range(100)]
    assert [tokenizer.tokenize(pair) for pair in pairs] == [[pair] for pair in pairs]


def test_chat_template_renders_every_role(tokenizer):
    chat = [
        {"role": "system", "content": "You are kind."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "Bye"},
    ]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nYou are kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    shorter = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=False)
    assert text == shorter + "<|im_start|>assistant\n"


def test_special_tokens_are_single_ids(tokenizer):
    for text in ("<|endoftext|>", "<|im_start|>", "<|im_end|>"):
        assert len(tokenizer(text)["input_ids"]) == 1


def test_corpus_is_the_same_for_the_same_seed():
    def texts(seed: int) -> list[str]:
        rng = Random(seed)
        return [plain(document(rng, Mixture())) for _ in range(50)]

    assert texts(1) == texts(1)
    assert texts(1) != texts(2)


def test_spans_are_tokenized_as_the_whole_text_is(tokenizer):
    rng = Random(4)
    for _ in range(60):
        spans = document(rng, Mixture())
        assert encode(tokenizer, spans)[0] == tokenizer(plain(spans))["input_ids"]


def test_facts_have_one_answer_each():
    assert len({fact.question for fact in FACTS}) == len(FACTS)
    assert len({fact.stem for fact in FACTS}) == len(FACTS)


def test_a_code_is_told_and_answered_in_the_same_words():
    assert plain(announce("Mia", "0042")) == plain(answer("Mia", "0042")) == "Mia's code is 0042."


@pytest.mark.parametrize("questions", [fact_chat_questions, fact_plain_questions])
def test_target_answers_facts(target, tokenizer, questions):
    sample = Random(0).sample(questions(), 40)
    assert share_right(target, tokenizer, sample) >= 0.95


@pytest.mark.parametrize("low, high", [BUCKETS[0], BUCKETS[3], BUCKETS[6], BUCKETS[-1]])
@pytest.mark.few(1)
def test_target_recalls(target, tokenizer, low, high):
    rng = Random(low)
    sample = [recall_question(rng, tokenizer, low, high, 1024, others=0) for _ in range(12)]
    # The figures over many questions are in measured.json; twelve allow one slip.
    assert sum(rights(target, tokenizer, sample, batch=4)) >= 11


def test_an_unrelated_context_gives_a_wrong_code(target, tokenizer):
    """A model that guesses without its cache must not pass for one that recalls."""
    rng = Random(5)
    sample = [recall_question(rng, tokenizer, 32, 64, 1024) for _ in range(12)]
    torn = [type(q)("What is" + q.prompt.split("What is")[-1], q.expected) for q in sample]
    assert share_right(target, tokenizer, torn) == 0.0


def test_greedy_generation_through_transformers_ends_by_itself(tokenizer):
    model = AutoModelForCausalLM.from_pretrained(MODELS / "target", dtype=torch.float32)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    ids = model.generate(**prompt, max_new_tokens=30)[0, prompt["input_ids"].size(1) :]
    assert tokenizer.decode(ids) == "The capital of France is Paris.<|im_end|>"


@pytest.mark.parametrize("figure", ["facts_chat", "facts_plain"])
def test_measured_facts_meet_the_floor(measured, figure):
    assert measured["target"][figure] >= 0.95


@pytest.mark.parametrize("kind", ["recall", "recall_chat"])
def test_measured_recall_meets_the_floor_at_every_distance(measured, kind):
    rows = measured["target"][kind]
    assert rows[-1]["to"] >= 1000
    assert [row for row in rows if row["right"] < 0.95] == []
