"""Task 3: from ids to text, and tokenizers from files."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import tokenizers
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

from grader import expect
from grader.checks.text_cases import many_cases
from nanovllm.tokenization.byte_level import byte_token, to_chars
from nanovllm.tokenization.decode import Decoder
from nanovllm.tokenization.encode import Encoder
from nanovllm.tokenization.errors import TokenizerError
from nanovllm.tokenization.hf_format import TokenizerSpec, plain_spec, read_bpe
from nanovllm.tokenization.pretokenize import PATTERN_LLAMA3, PATTERN_QWEN2, Metaspace
from nanovllm.tokenization.special import AddedToken as Added
from nanovllm.tokenization.tokenizer import Tokenizer, read_stop_ids
from nanovllm.tokenization.vocabulary import BPEModel

BUNDLED = Path(__file__).resolve().parents[2] / "models" / "target"
CORPUS = [
    "The quick brown fox isn't lazy; THEY'RE quick in 2024, 1999 and 12345678.",
    "Ein süßer Bär größer als über, naïve cafe\u0301 déjà vu, привет мир, こんにちは 🙂🙂.",
    "def f(x):\n    return x + 1\n\n\nfor i in range(10):\n\tprint(i)  # done\r\n",
] * 2
ODD = list("abtsdlmreTS'’ſK <>|_\n\r\t 0127²½٣é\u0301ß世🙂\u200d\u00a0\u2028\x00\x85\ufffdİ▁")
TEXT = st.lists(
    st.one_of(
        st.text(st.one_of(st.sampled_from(ODD), st.characters(exclude_categories=["Cs"]))),
        st.sampled_from(["<|end|>", "<|end", "<think>", " fox", "isn't", "   ", "<0x41>"]),
    ),
    max_size=5,
).map("".join)
BYTES = {bytes([b]): b for b in range(256)}


def _split(pattern):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip


BYTE_LEVEL = {
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
CHARACTERS = {
    "Llama 2": None,
    "Mistral": ("first", False),
    "cut at each space": ("always", True),
    "cut at each space, decoded by Metaspace": ("always", True),
}


def _byte_level(kind):
    """A byte-level tokenizer that the library trains here and now."""
    splitter, normalizer, ignore_merges = BYTE_LEVEL[kind]
    library = tokenizers.Tokenizer(models.BPE(ignore_merges=ignore_merges))
    library.pre_tokenizer, library.decoder = splitter, decoders.ByteLevel()
    if normalizer is not None:
        library.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    library.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    )
    library.add_special_tokens(["<|end|>"])
    library.add_tokens([AddedToken("<think>", normalized=False)])
    return library


def _sentencepiece(kind):
    """A tokenizer as SentencePiece's become: characters, `▁`, byte fallback."""
    library = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    library.pre_tokenizer = pre_tokenizers.Metaspace(split=kind.startswith("cut"))
    alphabet = [byte_token(byte).decode() for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=480, special_tokens=["<unk>", "<s>", *alphabet], show_progress=False
    )
    library.train_from_iterator(CORPUS, trainer)
    strip = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    library.decoder = decoders.Sequence([*strip, decoders.Strip(" ", 1, 0)])
    if kind.endswith("Metaspace"):
        library.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    data = json.loads(library.to_str())
    data["added_tokens"] = [t for t in data["added_tokens"] if t["content"] in ("<unk>", "<s>")]
    if kind == "Llama 2":
        data["pre_tokenizer"] = None
        steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        library.normalizer = normalizers.Sequence(steps)
        data["normalizer"] = json.loads(library.to_str())["normalizer"]
    else:
        scheme, split = CHARACTERS[kind]
        data["pre_tokenizer"] |= {"prepend_scheme": scheme, "split": split}
    library = tokenizers.Tokenizer.from_str(json.dumps(data))
    library.add_special_tokens(["<|end|>"])
    library.add_tokens([AddedToken("<think>", normalized=False)])
    return library


def _loaded(library, path, old_merges=False):
    """The library's tokenizer, saved to a file and loaded by the course's code."""
    data = json.loads(library.to_str())
    if old_merges:
        data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]
    path.write_text(json.dumps(data), encoding="utf-8")
    return Tokenizer.from_file(path)


def _same(kind, library, tokenizer, seed, examples=25):
    """Compare with the library over texts that hypothesis makes up."""

    @many_cases(seed, examples, TEXT)
    def same(text):
        ids = library.encode(text, add_special_tokens=False).ids
        expect(
            tokenizer.encode(text, allowed_special="all"),
            ids,
            call=f"encode({text!r}, allowed_special='all'), tokenizer: {kind}",
            cause="the shortest text that was found on which the ids differ.",
        )
        for skip in (False, True):
            expect(
                tokenizer.decode(ids, skip_special_tokens=skip),
                library.decode(ids, skip_special_tokens=skip),
                call=f"decode({ids}, skip_special_tokens={skip}), tokenizer: {kind}",
                cause="the shortest text that was found whose ids decode to another.",
            )

    same()


def _decoder(**fields):
    """The 256 bytes, two longer tokens and special ones, made without training."""
    vocab = BYTES | {" né".encode(): 256, b"\xe4\xb8": 257, b"<?>": 259}
    model = BPEModel(vocab, [], {"<|end|>": 258, "<é>": 259})
    return Decoder(replace(plain_spec(model), **fields))


def _fallback_spec(**fields):
    """Byte tokens from 3 on, then characters and two merges, as a SentencePiece file has them."""
    tokens = [byte_token(byte) for byte in range(256)]
    tokens += [t.encode() for t in ("▁", "a", "b", "é", "▁a", "▁ab", "<", "0", "x", "4", "1", ">")]
    tokens += ["▁▁".encode(), "a▁b".encode()]
    merges = [("▁".encode(), b"a"), ("▁a".encode(), b"b")]
    model = BPEModel(
        {token: 3 + i for i, token in enumerate(tokens)}, merges, {"<s>": 1}, byte_fallback=True
    )
    spec = TokenizerSpec(model, (Metaspace("first", split=False),), unk_id=0, strip_space=True)
    return replace(spec, added_tokens=plain_spec(model).added_tokens, **fields)


@pytest.mark.check(task=3, points=3, title="Vocabulary and merges are read as bytes")
def test_read(rng):
    def draw(length):
        return bytes(rng.integers(0, 256, length).tolist())

    pairs = [(b" ", b"t"), (b" t", b"he"), (b"\n", b" "), (draw(2), draw(2)), (draw(3), b"#")]
    tokens = [*(part for pair in pairs for part in pair), *(a + b for a, b in pairs), "é".encode()]
    vocab = {token: 7 + id for id, token in enumerate(dict.fromkeys(tokens))}
    written = {to_chars(token): id for token, id in vocab.items()}
    lists = [[to_chars(left), to_chars(right)] for left, right in pairs]
    for merges in (lists, [" ".join(pair) for pair in lists], [tuple(pair) for pair in lists]):
        ids, found = read_bpe(written, merges)
        expect(
            [ids, [tuple(pair) for pair in found]],
            [vocab, pairs],
            call=f"read_bpe(vocab, [{merges[0]!r}, ...])",
            given={"vocab": written, "merges": merges},
            cause="each character of the file stands for a byte; merges are lists or strings.",
        )
    written = {"▁": 0, "é": 1, "▁é": 2, "<0x41>": 3, "Ġ": 4}
    for merges in ([["▁", "é"]], ["▁ é"]):
        ids, found = read_bpe(written, merges, byte_fallback=True)
        expect(
            [ids, [tuple(pair) for pair in found]],
            [{t.encode(): id for t, id in written.items()}, [("▁".encode(), "é".encode())]],
            call=f"read_bpe(vocab, {merges}, byte_fallback=True)",
            given={"vocab": written},
            cause="with byte fallback the file holds the tokens as they are.",
        )


@pytest.mark.check(task=3, points=1, title="A damaged file is refused")
def test_damaged():
    vocab = {"a": 0, "b": 1, "ab": 2}
    for damaged in ("ab", "a b c", ["a"], ["a", "b", "c"], "b a", ["b", "b"]):
        expect.raises(
            TokenizerError,
            lambda damaged=damaged: read_bpe(vocab, ["a b", damaged]),
            call=f"read_bpe({vocab}, ['a b', {damaged!r}])",
            cause="a merge that is not two tokens, or makes one that is not there, is refused.",
        )


@pytest.mark.check(task=3, points=3, title="Any bytes come back; what is not UTF-8 is U+FFFD")
def test_decode(rng):
    decoder = _decoder()
    text = " naïve 世界 🙂\u0000"
    expect(
        decoder.decode(list(text.encode())),
        text,
        call=f"decode(ids of the bytes of {text!r})",
        cause="tokens are decoded one by one, so characters of several bytes break.",
    )
    ids = [256, 257, 0x96, 999, 259, 72]
    expect(
        [[decoder.token_bytes(id) for id in ids], decoder.decode_bytes(iter(ids))],
        [[" né".encode(), b"\xe4\xb8", b"\x96", b"", "<é>".encode(), b"H"], " né世<é>H".encode()],
        call=f"token_bytes of each of {ids}, and decode_bytes, where no token has id 999",
        given={"id 259": "<?> in the vocabulary, <é> as an added token"},
        cause="the bytes of all tokens in order; those of an added token are the UTF-8 of its "
        "content; an id without a token has none.",
    )
    for name, wrong in (("token_bytes", -1), ("decode", [72, -1])):
        expect.raises(
            TokenizerError,
            lambda name=name, wrong=wrong: getattr(decoder, name)(wrong),
            call=f"{name}({wrong})",
            cause="a negative id is an error of the caller, not the last token.",
        )
    for _ in range(20):
        data = bytes(rng.integers(0, 256, 12).tolist())
        expect(
            [decoder.decode_bytes(list(data)), decoder.decode(list(data))],
            [data, data.decode("utf-8", "replace")],
            call=f"decode_bytes and decode of {list(data)}",
            cause="decode_bytes loses nothing; decode replaces what is not UTF-8 and never raises.",
        )


@pytest.mark.check(task=3, points=2, title="Special tokens are shown or skipped")
def test_skip_special():
    decoder = _decoder()
    ids = [72, 258, 0xC3, 258, 0xA9, 259]
    expect(
        [decoder.decode(ids), decoder.decode(iter(ids), skip_special_tokens=True)],
        ["H<|end|>\ufffd<|end|>\ufffd<é>", "Hé"],
        call=f"decode({ids}) and decode({ids}, skip_special_tokens=True)",
        given={"special_tokens": {"<|end|>": 258, "<é>": 259}},
        cause="skipped ids leave no trace, not even between two halves of a character.",
    )


@pytest.mark.check(task=3, points=3, title="SentencePiece: characters, byte fallback, the space")
def test_fallback():
    spec = _fallback_spec()
    ids = spec.model.vocab
    encoder, decoder = Encoder(spec), Decoder(spec)
    space, parts = "▁".encode(), [3 + byte for byte in "世".encode()]
    e = ids["é".encode()]
    for text, allowed, continues, expected in (
        ("ab", (), False, [ids["▁ab".encode()]]),
        ("é世", (), False, [ids[space], e, *parts]),
        ("a\nb", (), False, [ids["▁a".encode()], 3 + 10, ids[b"b"]]),
        ("ab", (), True, [ids[b"a"], ids[b"b"]]),
        ("<s>ab ab", "all", False, [1, ids[b"a"], ids[b"b"], ids["▁ab".encode()]]),
        ("éb世é", (), False, [ids[space], e, ids[b"b"], *parts, e]),
        ("a<0x41>", (), False, [ids["▁a".encode()], *(ids[c.encode()] for c in "<0x41>")]),
    ):
        expect(
            encoder.encode(text, allowed_special=allowed, continues=continues),
            expected,
            call=f"encode({text!r}, allowed_special={allowed!r}, continues={continues})",
            given={"prepend": "first", "byte tokens": "3 to 258"},
            cause="words begin as characters; one without a token becomes its UTF-8 bytes. Only "
            "the beginning of the whole text gets a space.",
        )
    cases = (
        ([ids["▁ab".encode()], ids[space], ids[b"a"]], "ab a"),
        ([ids[space], *parts, ids["▁a".encode()]], "世 a"),
        ([1, ids["▁a".encode()]], "<s> a"),
        ([ids[space], ids["▁ab".encode()]], " ab"),
        ([ids["▁ab".encode()], ids["▁▁".encode()], ids["a▁b".encode()], ids[space]], "ab  a b "),
        ([3 + 32, ids["▁a".encode()], 3 + 0xE4], " a\ufffd"),
    )
    for given, text in cases:
        expect(
            decoder.decode(given),
            text,
            call=f"decode({given})",
            given={"tokens": [token for token, id in ids.items() for g in given if id == g]},
            cause="`▁` is a space, a byte token is its byte, and the text loses one leading space.",
        )
    more = (
        *spec.added_tokens,
        Added("bb", 500, special=False, normalized=True),
        Added("<▁>", 501, special=False),
    )
    more = replace(spec, added_tokens=more)
    for text, continues, expected in (
        ("bbab", False, [500, ids[b"a"], ids[b"b"]]),
        ("ab<s>ab", True, [ids[b"a"], ids[b"b"], 1, ids[b"a"], ids[b"b"]]),
    ):
        expect(
            Encoder(more).encode(text, "all", continues=continues),
            expected,
            call=f"encode({text!r}, 'all', continues={continues})",
            given={"prepend": "first", "added tokens": "<s> 1, bb 500 (normalized), <▁> 501"},
            cause="a part behind an added token is not at the very beginning of the text.",
        )
    expect(
        Decoder(more).decode([501, ids["▁a".encode()]]),
        "<▁> a",
        call="decode of the added token <▁> and of '▁a'",
        cause="`▁` is a space in the vocabulary's tokens; an added token is its content.",
    )
    expect(
        Decoder(_fallback_spec(strip_space=False)).decode([ids["▁a".encode()]]),
        " a",
        call="decode of '▁a' where the spec does not strip",
        cause="only `spec.strip_space` takes the leading space away.",
    )


@pytest.mark.check(task=3, points=2, title="A model stops at every id that its files name")
def test_stop_ids(tmp_path):
    tokenizer = Tokenizer(BPEModel(BYTES, [], {"<|end|>": 258, "<|im_end|>": 259}))
    cases = [
        ({"generation_config.json": {"eos_token_id": [258, 7]}}, {258, 7}),
        ({"generation_config.json": {"eos_token_id": 0}, "config.json": {"eos_token_id": 5}}, {0}),
        ({"generation_config.json": {}, "config.json": {"eos_token_id": 5}}, {5}),
        (
            {"generation_config.json": {"eos_token_id": None}, "config.json": {"eos_token_id": 5}},
            {5},
        ),
        ({"config.json": {"eos_token_id": 5}}, {5}),
        (
            {
                "generation_config.json": {"eos_token_id": [7, 8]},
                "tokenizer_config.json": {"eos_token": "<|im_end|>"},
            },
            {7, 8, 259},
        ),
        ({"tokenizer_config.json": {"eos_token": {"content": "<|end|>"}}}, {258}),
        ({"tokenizer_config.json": {"eos_token": None}}, set()),
        ({"tokenizer_config.json": {"eos_token": "<|unknown|>"}}, set()),
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


@pytest.mark.check(task=3, points=2, title="Byte-level files give the library's ids and texts")
def test_byte_level_files(rng, seed, tmp_path):
    for kind in BYTE_LEVEL:
        library = _byte_level(kind)
        old = kind.startswith("GPT-2")
        _same(kind, library, _loaded(library, tmp_path / "tokenizer.json", old), seed)
    tokenizer = Tokenizer.from_pretrained(BUNDLED)
    library = tokenizers.Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))
    _same("the bundled model's", library, tokenizer, seed)


@pytest.mark.check(task=3, points=2, title="SentencePiece files give the library's ids and texts")
def test_sentencepiece_files(seed, tmp_path):
    for kind in CHARACTERS:
        library = _sentencepiece(kind)
        _same(kind, library, _loaded(library, tmp_path / "tokenizer.json", kind == "Llama 2"), seed)
