"""Folders as Llama 2 and Mistral come, with SentencePiece's BPE: the texts of transformers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import httpx
import pytest
import tokenizers
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, trainers

from nanovllm import LLM, SamplingParams
from nanovllm.tokenization.chat import ChatTemplate
from nanovllm.tokenization.detokenizer import StreamingDetokenizer
from nanovllm.tokenization.errors import TokenizerError
from nanovllm.tokenization.hf_format import read_spec
from nanovllm.tokenization.tokenizer import Tokenizer
from tests.serving_tools import live
from tests.tiny_checkpoint import SMALL, save_random

CORPUS = [
    "The quick brown fox isn't lazy; THEY'RE quick in 2024, 1999 and 12345678. a b  c   d",
    "Ein süßer Bär größer als über, naïve café déjà vu, привет мир, こんにちは.",
    "def f(x):\n    return x + 1\n\n\nfor i in range(10):\n\tprint(i)  # done\r\n",
] * 2
TEXT = st.lists(
    st.one_of(
        st.text(st.one_of(st.sampled_from("ab ▁\n世🙂"), st.characters(exclude_categories=["Cs"]))),
        st.sampled_from([" fox", "  ", "   ", "<s>", "</s>", " </s> ", "[INST]", "<0x41>", "▁"]),
    ),
    max_size=6,
).map("".join)
PROMPTS = [
    "The quick brown fox",
    " leading and  two   spaces ",
    "naïve 世界 🙂\n\n  x",
    "Mia's code is 7342.",
    "▁ is a sign</s>, and <s> a token",
    " ",
]
CHAT = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
NAMED = ["<unk>", "<s>", "</s>"]
REPLACE = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
DECODER = [REPLACE, {"type": "ByteFallback"}, {"type": "Fuse"}]
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def trained(kind: str) -> dict[str, Any]:
    """A `tokenizer.json` with merges that the library learned, in the spelling of a model."""
    library = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    library.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    trainer = trainers.BpeTrainer(
        vocab_size=560, special_tokens=[*NAMED, *BYTES], show_progress=False
    )
    library.train_from_iterator(CORPUS, trainer)
    data = json.loads(library.to_str())
    data["added_tokens"] = [t for t in data["added_tokens"] if t["content"] in NAMED]
    data["decoder"] = {"type": "Sequence", "decoders": [*DECODER, STRIP]}
    bos = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    whole = {"Sequence": {"id": "A", "type_id": 0}}
    data["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [bos, whole],
        "pair": [bos, whole, bos, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }
    if kind == "Llama 2":
        replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
        steps = [{"type": "Prepend", "prepend": "▁"}, replace]
        data["normalizer"] = {"type": "Sequence", "normalizers": steps}
        data["pre_tokenizer"] = None
    else:
        data["pre_tokenizer"]["prepend_scheme"] = "first"
    return data


@dataclass
class Pair:
    """One folder: the engine on it, and transformers on it."""

    llm: LLM
    theirs: Any
    model: Any
    folder: Path

    def answer(self, ids: list[int], most: int) -> tuple[list[int], str]:
        """The ids and the text that transformers goes on with."""
        given = torch.tensor([ids])
        with torch.inference_mode():
            whole = self.model.generate(
                given,
                attention_mask=torch.ones_like(given),
                do_sample=False,
                max_new_tokens=most,
                pad_token_id=0,
            )
        new = whole[0, len(ids) :].tolist()
        return new, self.theirs.decode(new, skip_special_tokens=True)


@pytest.fixture(scope="module", params=["Llama 2", "Mistral"])
def pair(request, tmp_path_factory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("model")
    data = trained(request.param)
    config, window = {
        "Llama 2": (transformers.LlamaConfig, {}),
        "Mistral": (transformers.MistralConfig, {"sliding_window": 32}),
    }[request.param]
    model = save_random(folder, config, vocab=len(data["model"]["vocab"]), **SMALL, **window)
    with torch.no_grad():  # bytes at random are no text: the model writes few of them
        model.lm_head.weight[3:259] *= 0.1
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    entries = named | {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": CHAT}
    (folder / "tokenizer_config.json").write_text(json.dumps(entries))
    yield Pair(LLM(folder), transformers.AutoTokenizer.from_pretrained(folder), model, folder)


def test_ids_and_texts_of_any_text(pair) -> None:
    ours = pair.llm.get_tokenizer()

    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(TEXT)
    def same(text: str) -> None:
        ids = pair.theirs.encode(text)
        assert ours.encode(text, "all", add_special_tokens=True) == ids
        for skip in (False, True):
            shown = pair.theirs.decode(ids, skip_special_tokens=skip)
            assert ours.decode(ids, skip_special_tokens=skip) == shown
            stream = StreamingDetokenizer(ours, skip_special_tokens=skip)
            assert "".join(map(stream.push, ids)) + stream.flush() == shown

    same()


def test_the_engine_answers_as_transformers(pair) -> None:
    outputs = pair.llm.generate(
        PROMPTS, SamplingParams(temperature=0.0, max_tokens=24), use_tqdm=False
    )
    texts = []
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        ids = pair.theirs.encode(prompt)
        assert output.prompt_token_ids == ids
        new, text = pair.answer(ids, 24)
        assert list(output.outputs[0].token_ids) == new
        assert output.outputs[0].text == text
        texts.append(text)
    assert any(" " in text.strip() for text in texts)


def test_a_conversation_has_the_ids_of_transformers(pair) -> None:
    template = ChatTemplate.from_pretrained(pair.folder)
    messages = [
        {"role": "user", "content": "Hi  there"},
        {"role": "assistant", "content": "naïve 🙂"},
        {"role": "user", "content": "why?"},
    ]
    theirs = pair.theirs.apply_chat_template(messages, tokenize=False)
    assert template.render(messages) == theirs
    expected = pair.theirs.encode(theirs, add_special_tokens=False)
    assert template.encode(pair.llm.get_tokenizer(), messages) == expected


def test_the_server_streams_what_it_answers_whole(pair) -> None:
    with live(pair.llm.runner.engine) as server:
        for prompt in PROMPTS:
            body = {"prompt": prompt, "max_tokens": 24, "temperature": 0}
            whole = httpx.post(server.url + "/v1/completions", json=body, timeout=60).json()
            _, text = pair.answer(pair.theirs.encode(prompt), 24)
            assert whole["choices"][0]["text"] == text
            with httpx.stream(
                "POST", server.url + "/v1/completions", json=body | {"stream": True}, timeout=60
            ) as answer:
                lines = [line[6:] for line in answer.iter_lines() if line.startswith("data: ")]
            assert lines[-1] == "[DONE]"
            pieces = [c["text"] for line in lines[:-1] for c in json.loads(line)["choices"]]
            assert "".join(pieces) == text
        asked = {"prompt": " two  spaces 世"}
        ids = httpx.post(server.url + "/tokenize", json=asked).json()["tokens"]
        assert ids == pair.theirs.encode(asked["prompt"])
        back = httpx.post(server.url + "/detokenize", json={"tokens": ids[1:]}).json()["prompt"]
        assert back == pair.theirs.decode(ids[1:])


@pytest.mark.parametrize(
    "steps",
    [
        [],
        [REPLACE],
        [REPLACE, {"type": "ByteFallback"}, STRIP, {"type": "Fuse"}],
        [*DECODER, STRIP | {"start": 2}],
        [{"type": "ByteFallback"}, {"type": "Metaspace", "replacement": "▁"}],
    ],
)
def test_a_decoder_of_another_meaning_is_refused(steps) -> None:
    data = trained("Mistral")
    data["decoder"] = {"type": "Sequence", "decoders": steps}
    with pytest.raises(TokenizerError, match="decodes by"):
        read_spec(data)


def test_a_folder_with_sentencepieces_own_file_alone_says_what_to_do(tmp_path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"\n\x0e\n\x05<unk>")
    with pytest.raises(TokenizerError, match=r"sentencepiece and protobuf .*save_pretrained"):
        Tokenizer.from_pretrained(tmp_path)
