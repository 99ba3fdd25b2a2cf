"""Task 3: from ids to text, and tokenizers from files."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Library

from grader import expect
from nanovllm.tokenization.bpe import BPEModel
from nanovllm.tokenization.byte_level import to_chars
from nanovllm.tokenization.errors import TokenizerError
from nanovllm.tokenization.hf_format import read_merges, read_vocab
from nanovllm.tokenization.pretokenize import PATTERN_LLAMA3, PATTERN_QWEN2
from nanovllm.tokenization.tokenizer import Tokenizer, read_stop_ids

BUNDLED = Path(__file__).resolve().parents[2] / "models" / "target"
CORPUS = [
    "The quick brown fox isn't lazy; THEY'RE quick in 2024, 1999 and 12345678.",
    "Ein süßer Bär größer als über, naïve cafe\u0301 déjà vu, привет мир, こんにちは 🙂🙂.",
    "def f(x):\n    return x + 1\n\n\nfor i in range(10):\n\tprint(i)  # done\r\n",
] * 2
ODD = list("abtsdlmreTS'’ſK <>|_\n\r\t 0127²½٣é\u0301ß世🙂\u200d\u00a0\u2028\x00\x85\ufffdİ")
TEXT = st.lists(
    st.one_of(
        st.text(st.one_of(st.sampled_from(ODD), st.characters(exclude_categories=["Cs"]))),
        st.sampled_from(["<|end|>", "<|end", "<think>", " fox", "isn't", "   "]),
    ),
    max_size=5,
).map("".join)


def _split(pattern):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip


KINDS = {
    "GPT-2": (pre_tokenizers.ByteLevel(add_prefix_space=False), None, False),
    "GPT-2 with a space before": (pre_tokenizers.ByteLevel(add_prefix_space=True), None, False),
    "Qwen2, NFC": (_split(PATTERN_QWEN2), normalizers.NFC(), False),
    "Llama 3, ignore_merges": (_split(PATTERN_LLAMA3), None, True),
    "digits one by one": (
        pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel()]),
        None,
        False,
    ),
}


def _trained(kind, old_merges=False):
    """A tokenizer that the library trains here and now, and the text of its tokenizer.json."""
    splitter, normalizer, ignore_merges = KINDS[kind]
    library = Library(models.BPE(ignore_merges=ignore_merges))
    library.pre_tokenizer, library.decoder = splitter, decoders.ByteLevel()
    if normalizer is not None:
        library.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    library.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    )
    library.add_special_tokens(["<|end|>"])
    library.add_tokens([AddedToken("<think>", normalized=False)])
    data = json.loads(library.to_str())
    if old_merges:
        data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]
    return library, json.dumps(data)


def _same_ids(kind, library, tokenizer):
    """Compare with the library over texts that hypothesis makes up."""

    @settings(derandomize=True, database=None, deadline=None, max_examples=40)
    @given(TEXT)
    def same(text):
        ids = library.encode(text, add_special_tokens=False).ids
        expect(
            tokenizer.encode(text, allowed_special="all"),
            ids,
            call=f"encode({text!r}, allowed_special='all'), tokenizer: {kind}",
            cause="words, merges or added tokens differ from the library's.",
        )
        for skip in (False, True):
            expect(
                tokenizer.decode(ids, skip_special_tokens=skip),
                library.decode(ids, skip_special_tokens=skip),
                call=f"decode({ids}, skip_special_tokens={skip}), tokenizer: {kind}",
                cause="join the bytes of all tokens, decode once.",
            )

    same()


def _bytes_tokenizer():
    """The 256 bytes, two longer tokens and a special one, made without training."""
    vocab = {bytes([b]): b for b in range(256)} | {" né".encode(): 256, b"\xe4\xb8": 257}
    return Tokenizer(BPEModel(vocab, [], {"<|end|>": 258}))


@pytest.mark.check(task=3, points=2, title="The vocabulary is read as bytes")
def test_vocab(rng):
    tokens = [bytes(rng.integers(0, 256, n).tolist()) for n in (1, 2, 3, 4)]
    tokens += [b" the", "é".encode(), b"\n\n", b"\xff\x00"]
    vocab = {token: 7 + id for id, token in enumerate(dict.fromkeys(tokens))}
    written = {to_chars(token): id for token, id in vocab.items()}
    expect(
        read_vocab(written),
        vocab,
        call="read_vocab(entries)",
        given={"entries": written},
        cause="the file writes each byte as one character of byte_level; encode() makes UTF-8.",
    )


@pytest.mark.check(task=3, points=3, title="Merges are read in both spellings")
def test_merges(rng):
    def draw():
        return bytes(rng.integers(0, 256, 2).tolist())

    pairs = [(b" ", b"t"), (b" t", b"he"), (b"\n", b" "), (draw(), draw()), (draw(), b"#")]
    lists = [[to_chars(left), to_chars(right)] for left, right in pairs]
    for entries in (lists, [" ".join(pair) for pair in lists], [tuple(pair) for pair in lists]):
        expect(
            read_merges(entries),
            pairs,
            call=f"read_merges([{entries[0]!r}, ...])",
            given={"entries": entries},
            cause="each entry becomes a pair of bytes, from a string or from a list.",
        )
    for damaged in ("Ġthe", "a b c", ["a"], ["a", "b", "c"]):
        expect.raises(
            TokenizerError,
            lambda damaged=damaged: read_merges(["Ġ t", damaged]),
            match=str(damaged)[-3:].strip("[]'"),
            call=f"read_merges(['Ġ t', {damaged!r}])",
            cause="a damaged entry is refused and named.",
        )


@pytest.mark.check(task=3, points=4, title="Any bytes come back; what is not UTF-8 is U+FFFD")
def test_decode(rng):
    tokenizer = _bytes_tokenizer()
    text = " naïve 世界 🙂\u0000"
    expect(
        tokenizer.decode(list(text.encode())),
        text,
        call=f"decode(ids of the bytes of {text!r})",
        cause="tokens are decoded one by one, so characters of several bytes break.",
    )
    ids = [256, 257, 0x96, 999, 72]
    expect(
        tokenizer.decode_bytes(ids),
        " né世H".encode(),
        call=f"decode_bytes({ids}), where no token has id 999",
        cause="bytes of all tokens in order; an id without a token has none.",
    )
    for _ in range(20):
        data = bytes(rng.integers(0, 256, 12).tolist())
        expect(
            [tokenizer.decode_bytes(list(data)), tokenizer.decode(list(data))],
            [data, data.decode("utf-8", "replace")],
            call=f"decode_bytes and decode of {list(data)}",
            cause="decode_bytes loses nothing; decode replaces what is not UTF-8 and never raises.",
        )


@pytest.mark.check(task=3, points=2, title="Special tokens are shown or skipped")
def test_skip_special():
    tokenizer = _bytes_tokenizer()
    ids = [72, 258, 0xC3, 258, 0xA9, 258]
    expect(
        [tokenizer.decode(ids), tokenizer.decode(ids, skip_special_tokens=True)],
        ["H<|end|>\ufffd<|end|>\ufffd<|end|>", "Hé"],
        call=f"decode({ids}) and decode({ids}, skip_special_tokens=True)",
        given={"special_tokens": {"<|end|>": 258}},
        cause="skipped ids leave no trace, not even between two halves of a character.",
    )


@pytest.mark.check(task=3, points=3, title="A model stops at every id that its files name")
def test_stop_ids(tmp_path):
    vocab = {bytes([b]): b for b in range(256)}
    tokenizer = Tokenizer(BPEModel(vocab, [], {"<|end|>": 258, "<|im_end|>": 259}))
    cases = [
        ({"generation_config.json": {"eos_token_id": [258, 7]}}, {258, 7}),
        ({"generation_config.json": {"eos_token_id": 0}, "config.json": {"eos_token_id": 5}}, {0}),
        ({"generation_config.json": {}, "config.json": {"eos_token_id": 5}}, {5}),
        (
            {
                "generation_config.json": {"eos_token_id": [7, 8]},
                "tokenizer_config.json": {"eos_token": "<|im_end|>"},
            },
            {7, 8, 259},
        ),
        ({"tokenizer_config.json": {"eos_token": {"content": "<|end|>"}}}, {258}),
        ({"tokenizer_config.json": {"eos_token": None}}, set()),
        ({}, set()),
    ]
    for number, (files, stops) in enumerate(cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, entries in files.items():
            (folder / name).write_text(json.dumps(entries))
        expect(
            sorted(read_stop_ids(folder, tokenizer)),
            sorted(stops),
            call="read_stop_ids(folder, tokenizer)",
            given={"files": files},
            cause="one id or a list; the tokenizer's own eos_token counts as well.",
        )


@pytest.mark.check(task=3, points=4, title="Trained tokenizers give the library's ids")
def test_trained(tmp_path):
    for kind in KINDS:
        library, written = _trained(kind, old_merges=kind.startswith("GPT-2"))
        path = tmp_path / f"{kind}.json"
        path.write_text(written)
        tokenizer = Tokenizer.from_file(path)

        _same_ids(kind, library, tokenizer)


@pytest.mark.check(task=3, points=2, title="The bundled model's tokenizer gives the library's ids")
def test_bundled(rng):
    tokenizer = Tokenizer.from_pretrained(BUNDLED)
    library = Library.from_file(str(BUNDLED / "tokenizer.json"))
    texts = ["Mia's code is 7342. What is Mia's code?", "<|im_start|>user\nHi<|im_end|>\n", "  "]
    texts += ["".join(rng.choice(ODD, 80)) for _ in range(20)]
    for text in texts:
        ids = library.encode(text, add_special_tokens=False).ids
        expect(
            tokenizer.encode(text, allowed_special="all"),
            ids,
            call=f"encode({text!r}, allowed_special='all')",
            cause="the same file must give the same ids, or the model reads other words.",
        )
        expect(
            tokenizer.decode(ids),
            text,
            call="decode(encode(text))",
            given={"text": text},
            cause="byte-level BPE loses nothing.",
        )
