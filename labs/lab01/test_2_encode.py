"""Task 2: from text to ids."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
import tokenizers
from hypothesis import strategies as st
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from grader import expect
from grader.checks.text_cases import lines_run, many_cases, random_ranks
from nanovllm.tokenization.byte_level import to_bytes
from nanovllm.tokenization.encode import Encoder, merge_word, split_special
from nanovllm.tokenization.errors import TokenizerError
from nanovllm.tokenization.hf_format import Form, plain_spec
from nanovllm.tokenization.pretokenize import PATTERN_QWEN2
from nanovllm.tokenization.special import AddedToken
from nanovllm.tokenization.vocabulary import BPEModel

CORPUS = [
    "The quick brown fox isn't lazy; the dogs weren't quick in 2024 or 1999.",
    "Ein süßer Bär größer als über, naïve café déjà vu, привет мир, こんにちは世界 🙂🙂.",
    "def f(x):\n    return x + 1\n\n\nfor i in range(10):\n\tprint(i)  # done\r\n",
] * 2
SPECIAL = ("<|end|>", "<|end|><|end|>", "<|user|>")
BYTES = {bytes([b]): b for b in range(256)}


def _library(rng, normalizer=None):
    """A tokenizer that the library trains here and now."""
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN_QWEN2), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    library.decoder = decoders.ByteLevel()
    if normalizer is not None:
        library.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=int(rng.integers(380, 460)),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(CORPUS, trainer)
    return library


def _model(library, special=SPECIAL):
    """The library's vocabulary as the course writes it."""
    model = json.loads(library.to_str())["model"]
    return BPEModel(
        vocab={to_bytes(token): id for token, id in model["vocab"].items()},
        merges=[(to_bytes(left), to_bytes(right)) for left, right in model["merges"]],
        special_tokens={token: library.token_to_id(token) for token in special},
        pattern=PATTERN_QWEN2,
    )


def _slow_merges(word, ranks):
    """The oracle of merging: look at all neighbours, merge the lowest rank, repeat."""
    tokens = list(word)
    while True:
        ranked = [(ranks[pair], i) for i, pair in enumerate(pairwise(tokens)) if pair in ranks]
        if not ranked:
            return tokens
        i = min(ranked)[1]
        tokens[i : i + 2] = [tokens[i] + tokens[i + 1]]


def _pieces(rng, length, letters):
    return [letters[i] for i in rng.integers(0, len(letters), length)]


@pytest.mark.check(task=2, points=3, title="Merges apply in learned order")
def test_merge_order(rng):
    a, b, c = letters = [b"a", b"b", b"c"]
    ranks = {(b, c): 0, (a, b): 1, (a, b"bc"): 2, (c, a): 3}
    expect(
        merge_word([a, b, c, a, b], ranks),
        [b"abc", b"ab"],
        call="merge_word([b'a', b'b', b'c', b'a', b'b'], ranks)",
        given={"ranks": ranks},
        cause="rank 0 (b, c) comes before rank 1 (a, b), although it stands further right.",
    )
    for letters in ([a, b, c], ["é".encode(), "▁".encode(), b"x"]):
        for _ in range(8):
            ranks = random_ranks(rng, letters, int(rng.integers(3, 12)))
            for length in (0, 1, 2, 3, 7, 15, 40):
                word = _pieces(rng, length, letters)
                expect(
                    merge_word(word, ranks),
                    _slow_merges(word, ranks),
                    call=f"merge_word({word}, ranks)",
                    given={"ranks": ranks},
                    cause="lowest rank first, of equals the leftmost, until no pair has a rank.",
                )


class _Counted(dict):
    """Ranks that count how often they are asked."""

    asked = 0

    def get(self, key, default=None):
        self.asked += 1
        return super().get(key, default)

    def __getitem__(self, key):
        self.asked += 1
        return super().__getitem__(key)

    def __contains__(self, key):
        self.asked += 1
        return super().__contains__(key)


@pytest.mark.check(task=2, points=3, title="A long word does not stop the engine")
def test_long_word(rng):
    letters = [b"a", b"b", b"c"]
    ranks = _Counted(random_ranks(rng, letters, 30))
    word = _pieces(rng, 2000, letters)
    expect(
        b"".join(merge_word(word, ranks)), b"".join(word), call="merge_word(2,000 pieces), joined"
    )
    expect.that(
        ranks.asked <= 10 * len(word),
        "2,000 pieces ask for a rank 20,000 times at most",
        observed=ranks.asked,
        call="merge_word(2,000 pieces, ranks), counting the questions",
        cause="every round looks at all pairs again, though only two of them are new.",
    )
    short, long = (lines_run(lambda n=n: merge_word(word[:n], ranks)) for n in (500, 2000))
    expect.that(
        long <= 8 * short + 1000,
        f"500 pieces run {short:,} lines of your code, and four times as many about four times "
        "as many",
        observed=long,
        call="merge_word, counting the lines of your code that run",
        cause="a round that walks through the whole word makes n x n steps of n pieces.",
    )


@pytest.mark.check(task=2, points=3, title="Text is cut at special tokens, the longest first")
def test_split_special():
    tokens = [
        AddedToken("<a>", 1),
        AddedToken("<a><b>", 2),
        AddedToken("<r>", 3, lstrip=True, rstrip=True),
        AddedToken("{a|b}", 4),
        AddedToken("cat", 5, single_word=True),
        AddedToken("z-z", 6, single_word=True),
    ]
    samples = {
        "": [],
        "plain": ["plain"],
        "<a>": [1],
        "x<a><b>y<a>": ["x", 2, "y", 1],
        "<a><a><b>": [1, 2],
        "x  <r> \n y": ["x", 3, "y"],
        "<a>  <r>  <r>": [1, 3, 3],
        "x{a|b}y b} {a": ["x", 4, "y b} {a"],
        "cat concat cats cat.": [5, " concat cats ", 5, "."],
        "<a": ["<a"],
        "zz-z-z z-z-z": ["zz-z-z ", 6, "-z"],
    }
    for text, parts in samples.items():
        found = split_special(text, tokens)
        expect(
            [part if isinstance(part, str) else part.id for part in found],
            parts,
            call=f"split_special({text!r}, tokens), ids in place of tokens",
            given={"tokens": [token.content for token in tokens]},
            cause="longest token first, every character of a token literal, no empty text; the "
            "search goes on behind a token that is not there.",
        )
    expect(split_special("<a>", []), ["<a>"], call="split_special('<a>', [])")


@pytest.mark.check(task=2, points=3, title="Words are merged each by itself")
def test_word_by_word(rng):
    library = _library(rng)
    encoder = Encoder(plain_spec(_model(library, ())))
    texts = ["", " ", "\n\n  x", "Don't DON'T", "größer 2024", "世界🙂\u200d🙂", "a\u0301 \x00\x7f"]
    texts += ["".join(rng.choice(list("ab é🙂世1.\n\t'"), 60)) for _ in range(6)]
    for text in [*texts, *texts[:3]]:
        expect(
            encoder.encode(text),
            library.encode(text).ids,
            call=f"encode({text!r})",
            cause="cut into words by `spec.words`, then merge within each word only.",
        )
    twice = BPEModel(BYTES | {b"ab": 256, b"bc": 257}, [(b"a", b"b"), (b"b", b"c"), (b"a", b"b")])
    expect(
        Encoder(plain_spec(twice)).encode("abc"),
        [256, 99],
        call="encode('abc') with the merges (a, b), (b, c), (a, b)",
        cause="a merge that is listed twice has the rank of its first place.",
    )


@pytest.mark.check(task=2, points=3, title="Special tokens in a text are text unless allowed")
def test_allowed_special(rng):
    plain, library = (_library(rng) for _ in range(2))
    library = tokenizers.Tokenizer.from_str(plain.to_str())
    library.add_special_tokens(list(SPECIAL))
    model = _model(library)
    encoder = Encoder(plain_spec(model))
    text = "Hi<|end|> you <|user|><|end|><|end|>"
    end, both, user = model.special_tokens.values()

    def words(part):
        return plain.encode(part).ids

    for allowed, ids in (
        (frozenset(), words(text)),
        ("all", [*words("Hi"), end, *words(" you "), user, both]),
        ({"<|user|>"}, [*words("Hi<|end|> you "), user, *words("<|end|><|end|>")]),
        (["<|end|>"], [*words("Hi"), end, *words(" you <|user|>"), end, end]),
    ):
        expect(
            encoder.encode(text, allowed_special=allowed),
            ids,
            call=f"encode({text!r}, allowed_special={allowed!r})",
            given={"special_tokens": model.special_tokens},
            cause="only allowed special tokens are honoured; by default none is.",
        )
    expect.raises(
        TokenizerError,
        lambda: encoder.encode("Hi", allowed_special={"<|user|>", "<|typo|>"}),
        call="encode('Hi', allowed_special={'<|user|>', '<|typo|>'})",
        cause="a name that is no special token here is refused.",
    )
    think = AddedToken("<think>", 999, special=False)
    ordinary = Encoder(replace(plain_spec(model), added_tokens=(think,)))
    expect.raises(
        TokenizerError,
        lambda: ordinary.encode("Hi", allowed_special={"<think>"}),
        call="encode('Hi', allowed_special={'<think>'}), an added token that is not special",
        cause="allowed_special names special tokens only.",
    )


@pytest.mark.check(task=2, points=2, title="Whole words and missing bytes")
def test_missing():
    model = BPEModel({b"a": 1, b"b": 2, b"c": 3, b"ab": 4, b"abc": 5}, [(b"a", b"b")], {"<unk>": 0})
    spec = plain_spec(model)
    for fields, text, ids in (
        ({}, "abc", [4, 3]),
        ({"ignore_merges": True}, "abc", [5]),
        ({"ignore_merges": True}, "abcab", [4, 3, 4]),
        ({}, "axb", [4]),
        ({"unk_id": 9}, "axb", [1, 9, 2]),
        ({"unk_id": 0}, "axxb", [1, 0, 0, 2]),
    ):
        expect(
            Encoder(replace(spec, **fields)).encode(text),
            ids,
            call=f"encode({text!r})",
            given={"vocab": model.vocab, "merges": model.merges} | fields,
            cause="ignore_merges takes a word whole if it is a token; what has no token is unk_id, "
            "and is dropped before merging only where unk_id is None. 0 is an id.",
        )


@pytest.mark.check(task=2, points=3, title="Text is normalized, added tokens are found")
def test_normalized():
    added = (
        AddedToken("<|end|>", 300),
        AddedToken("<think>", 301, special=False),
        AddedToken("cafe\u0301", 302, special=False, normalized=True),
        AddedToken("A\u030a<x>", 303, special=False),
        AddedToken("<|late|>", 304, normalized=True),
        AddedToken("z", 305, special=False, normalized=True),
    )
    model = BPEModel(BYTES | {"é".encode(): 256}, [(b"\xc3", b"\xa9")], {"<|end|>": 300})
    spec = replace(plain_spec(model), added_tokens=added, normalizers=(Form("NFC"),))
    encoder = Encoder(spec)
    for text, allowed, ids in (
        ("e\u0301", (), [256]),
        ("z z\u0301", (), [305, 32, *"ź".encode()]),
        ("a<think>b", (), [97, 301, 98]),
        ("caf\u00e9 cafe\u0301", (), [302, 32, 302]),
        ("A\u030a<x>\u00c5<x>", (), [303, *"Å<x>".encode()]),
        ("<|end|>e\u0301", "all", [300, 256]),
        ("<|late|>", (), [*b"<|late|>"]),
        ("e\u0301<|late|>", ["<|late|>"], [256, 304]),
    ):
        expect(
            encoder.encode(text, allowed_special=allowed),
            ids,
            call=f"encode({text!a}, allowed_special={allowed!r}) with NFC",
            given={
                "added tokens": {ascii(t.content): (t.id, t.special, t.normalized) for t in added}
            },
            cause="first cut out the tokens that are not normalized, then normalize what is left, "
            "then cut out the others.",
        )


@pytest.mark.check(task=2, points=1, title="Half of a surrogate pair is U+FFFD")
def test_surrogates():
    model = BPEModel(BYTES, [])
    encoder = Encoder(plain_spec(model))
    smile = AddedToken("🙂", 300, special=False)
    whole = Encoder(replace(plain_spec(model), added_tokens=(smile,)))
    pair = r"\ud83d\ude42"
    expect(
        whole.encode(pair.encode().decode("unicode-escape")),
        [300],
        call=f"encode('{pair}'), where 🙂 is an added token",
        cause="`well_formed` joins the two halves before tokens are cut out.",
    )
    for text, seen in ((r"a\ud83d b", "a\ufffd b"), (r"\ude42\ud83d", "\ufffd\ufffd")):
        expect(
            encoder.encode(text.encode().decode("unicode-escape")),
            list(seen.encode()),
            call=f"encode('{text}')",
            cause="UTF-8 has no bytes for half a pair; `well_formed` makes U+FFFD of it.",
        )


@pytest.mark.check(task=2, points=1, title="Beginning of sequence only where asked for")
def test_prefix():
    model = BPEModel(BYTES, [], {"<s>": 256, "</s>": 257})
    spec = replace(plain_spec(model), prefix_ids=(256,), suffix_ids=(257,))
    encoder = Encoder(spec)
    for text, asked, continues, ids in (
        ("Hi", False, False, [72, 105]),
        ("Hi", True, False, [256, 72, 105, 257]),
        ("", True, False, [256, 257]),
        ("Hi", True, True, [256, 72, 105, 257]),
    ):
        expect(
            encoder.encode(text, add_special_tokens=asked, continues=continues),
            ids,
            call=f"encode({text!r}, add_special_tokens={asked}, continues={continues})",
            cause="a chat template writes the BOS itself; one more would double it.",
        )


@pytest.mark.check(
    task=2, points=2, title="Any text gives the ids of the tokenizers library", stress=True
)
def test_any_text(rng, seed):
    library = _library(rng, normalizers.NFC())
    library.add_special_tokens(["<s>", tokenizers.AddedToken("<|x|>", lstrip=True, rstrip=True)])
    library.add_tokens([
        tokenizers.AddedToken("<think>", normalized=False),
        tokenizers.AddedToken("café", normalized=True),
        tokenizers.AddedToken("fox", normalized=False, single_word=True),
    ])  # fmt: skip
    data = json.loads(library.to_str())
    added = tuple(AddedToken(**entry) for entry in data["added_tokens"])
    spec = replace(
        plain_spec(_model(library, ("<s>", "<|x|>"))),
        added_tokens=added,
        normalizers=(Form("NFC"),),
    )
    encoder = Encoder(spec)
    known = [token.content for token in added]
    odd = st.sampled_from(
        [*known, " ", "  ", "e\u0301", "caf", "<|x", "fox's", "1²", "\r\n", "\u2028"]
    )
    texts = st.lists(st.one_of(odd, st.text(max_size=4)), max_size=8).map("".join)

    @many_cases(seed, 80, texts, st.booleans())
    def same(text, honoured):
        library.encode_special_tokens = not honoured
        expect(
            encoder.encode(text, allowed_special="all" if honoured else ()),
            library.encode(text, add_special_tokens=False).ids,
            call=f"encode({text!r}, allowed_special={'all' if honoured else ()!r})",
            cause="the shortest text that was found on which the ids differ.",
        )

    same()
