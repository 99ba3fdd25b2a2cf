"""Task 2: from text to ids."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Library

from grader import expect
from nanovllm.tokenization.bpe import BPEModel
from nanovllm.tokenization.byte_level import to_bytes
from nanovllm.tokenization.encode import AddedToken, merge_word, split_special
from nanovllm.tokenization.errors import TokenizerError
from nanovllm.tokenization.pretokenize import PATTERN_QWEN2
from nanovllm.tokenization.tokenizer import Tokenizer

CORPUS = [
    "The quick brown fox isn't lazy; the dogs weren't quick in 2024 or 1999.",
    "Ein süßer Bär größer als über, naïve café déjà vu, привет мир, こんにちは世界 🙂🙂.",
    "def f(x):\n    return x + 1\n\n\nfor i in range(10):\n\tprint(i)  # done\r\n",
] * 2
SPECIAL = ["<|end|>", "<|end|><|end|>", "<|user|>"]


def _library(rng):
    """A tokenizer trained by the library, and its vocabulary as a BPEModel."""
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN_QWEN2), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=int(rng.integers(380, 460)),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(CORPUS, trainer)
    model = json.loads(library.to_str())["model"]
    library.add_special_tokens(SPECIAL)
    return library, BPEModel(
        vocab={to_bytes(token): id for token, id in model["vocab"].items()},
        merges=[(to_bytes(left), to_bytes(right)) for left, right in model["merges"]],
        special_tokens={token: library.token_to_id(token) for token in SPECIAL},
        pattern=PATTERN_QWEN2,
    )


def _slow_merges(word, ranks):
    """The oracle of merging: look at all neighbours, merge the lowest rank, repeat."""
    tokens = [bytes([b]) for b in word]
    while True:
        ranked = [(ranks[pair], i) for i, pair in enumerate(pairwise(tokens)) if pair in ranks]
        if not ranked:
            return tokens
        i = min(ranked)[1]
        tokens[i : i + 2] = [tokens[i] + tokens[i + 1]]


def _random_ranks(rng, merges):
    """Ranks of random merges over a, b, c in which later merges build on earlier tokens."""
    tokens, ranks = [b"a", b"b", b"c"], {}
    while len(ranks) < merges:
        pair = tuple(tokens[i] for i in rng.integers(0, len(tokens), 2))
        if pair not in ranks:
            ranks[pair] = len(ranks)
            tokens.append(pair[0] + pair[1])
    return ranks


@pytest.mark.check(task=2, points=4, title="Merges apply in learned order")
def test_merge_order(rng):
    ranks = {(b"b", b"c"): 0, (b"a", b"b"): 1, (b"a", b"bc"): 2, (b"c", b"a"): 3}
    expect(
        merge_word(b"abcab", ranks),
        [b"abc", b"ab"],
        call="merge_word(b'abcab', ranks)",
        given={"ranks": ranks},
        cause="rank 0 (b, c) comes before rank 1 (a, b), although it stands further right.",
    )
    for _ in range(12):
        ranks = _random_ranks(rng, int(rng.integers(3, 12)))
        words = [bytes(rng.choice(list(b"abc"), n).tolist()) for n in (1, 2, 3, 7, 15, 40)]
        expect(
            [merge_word(word, ranks) for word in words],
            [_slow_merges(word, ranks) for word in words],
            call=f"merge_word(word, ranks) for {words[:4]}...",
            given={"ranks": ranks},
            cause="lowest rank first, of equals the leftmost, until no neighbours have a rank.",
        )
    expect(merge_word(b"", ranks), [], call="merge_word(b'', ranks)", cause="no bytes, no tokens.")


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


@pytest.mark.check(task=2, points=3, title="A long word asks for each new pair once")
def test_long_word(rng):
    ranks = _Counted(_random_ranks(rng, 30))
    word = bytes(rng.choice(list(b"abc"), 1500).tolist())
    tokens = merge_word(word, ranks)
    expect(b"".join(tokens), word, call="merge_word of 1,500 bytes, joined")
    expect.that(
        ranks.asked <= 3 * len(word),
        "1,500 bytes ask for a rank 4,500 times at most",
        observed=ranks.asked,
        call="merge_word(1500 bytes, ranks), counting the questions",
        cause="every round looks at all pairs again, though only two of them are new.",
    )


@pytest.mark.check(task=2, points=3, title="Text is cut at special tokens, the longest first")
def test_split_special():
    tokens = [
        AddedToken("<a>", 1),
        AddedToken("<a><b>", 2),
        AddedToken("<r>", 3, lstrip=True, rstrip=True),
        AddedToken("{a|b}", 4),
        AddedToken("cat", 5, single_word=True),
    ]
    samples = {
        "": [],
        "plain": ["plain"],
        "<a>": [1],
        "x<a><b>y<a>": ["x", 2, "y", 1],
        "<a><a><b>": [1, 2],
        "x  <r> \n y": ["x", 3, "y"],
        "x{a|b}y b} {a": ["x", 4, "y b} {a"],
        "cat concat cats cat.": [5, " concat cats ", 5, "."],
        "<a": ["<a"],
    }
    for text, parts in samples.items():
        found = split_special(text, tokens)
        expect(
            [part if isinstance(part, str) else part.id for part in found],
            parts,
            call=f"split_special({text!r}, tokens), ids in place of tokens",
            given={"tokens": [token.content for token in tokens]},
            cause="longest token first, every character of a token literal, no empty text.",
        )
    expect(split_special("<a>", []), ["<a>"], call="split_special('<a>', [])")


@pytest.mark.check(task=2, points=4, title="Special tokens in a text are text unless allowed")
def test_allowed_special(rng):
    library, model = _library(rng)
    plain = Library.from_str(json.dumps(json.loads(library.to_str()) | {"added_tokens": []}))
    tokenizer = Tokenizer(model)
    text = "Hi<|end|> you <|user|><|end|><|end|>"
    end, both, user = (model.special_tokens[token] for token in SPECIAL)

    def words(part):
        return plain.encode(part).ids

    for allowed, ids in (
        (frozenset(), words(text)),
        ("all", [*words("Hi"), end, *words(" you "), user, both]),
        ({"<|user|>"}, [*words("Hi<|end|> you "), user, *words("<|end|><|end|>")]),
        (["<|end|>"], [*words("Hi"), end, *words(" you <|user|>"), end, end]),
    ):
        expect(
            tokenizer.encode(text, allowed_special=allowed),
            ids,
            call=f"encode({text!r}, allowed_special={allowed!r})",
            given={"special_tokens": model.special_tokens},
            cause="only allowed special tokens are honoured; by default none is.",
        )
    expect.raises(
        TokenizerError,
        lambda: tokenizer.encode("Hi", allowed_special={"<|typo|>"}),
        match="typo",
        call="encode('Hi', allowed_special={'<|typo|>'})",
    )


@pytest.mark.check(task=2, points=2, title="Whole words and missing bytes")
def test_encode_word():
    model = BPEModel({b"a": 0, b"b": 1, b"c": 2, b"ab": 3, b"abc": 4}, [(b"a", b"b")])
    spec = Tokenizer(model).spec
    for fields, word, ids in (
        ({}, b"abc", [3, 2]),
        ({"ignore_merges": True}, b"abc", [4]),
        ({"ignore_merges": True}, b"abcab", [3, 2, 3]),
        ({}, b"a?b", [3]),
        ({"unk_id": 9}, b"a?b", [0, 9, 1]),
    ):
        tokenizer = Tokenizer(model, replace(spec, **fields))
        expect(
            tokenizer.encode_word(word),
            ids,
            call=f"encode_word({word})",
            given={"vocab": model.vocab, "merges": model.merges} | fields,
            cause="ignore_merges takes the whole word if it is a token; unk_id None drops a byte.",
        )


@pytest.mark.check(task=2, points=3, title="Ids are those of the tokenizers library")
def test_ids(rng):
    library, model = _library(rng)
    tokenizer = Tokenizer(model)
    texts = ["", " ", "\n\n  x", "Don't DON'T", "größer 2024", "世界🙂\u200d🙂", "a\u0301 \x00\x7f"]
    texts += ["".join(rng.choice(list("ab é🙂世1.\n\t'<|end|>"), 60)) for _ in range(10)]
    for text in texts:
        expect(
            tokenizer.encode(text, allowed_special="all"),
            library.encode(text).ids,
            call=f"encode({text!r}, allowed_special='all')",
            cause="cut into words, then merge within each word only.",
        )
    expect(
        tokenizer.encode("a\ud83d b \ude42"),
        library.encode("a\ufffd b \ufffd").ids,
        call=r"encode('a\ud83d b \ude42'), two lone surrogates",
        cause="well_formed makes U+FFFD of them; encode() would raise.",
    )


@pytest.mark.check(task=2, points=1, title="Beginning of sequence only where asked for")
def test_prefix():
    model = BPEModel({bytes([b]): b for b in range(256)}, [], {"<s>": 256, "</s>": 257})
    spec = replace(Tokenizer(model).spec, prefix_ids=(256,), suffix_ids=(257,))
    tokenizer = Tokenizer(model, spec)
    for text, asked, ids in (
        ("Hi", False, [72, 105]),
        ("Hi", True, [256, 72, 105, 257]),
        ("", True, [256, 257]),
    ):
        expect(
            tokenizer.encode(text, add_special_tokens=asked),
            ids,
            call=f"encode({text!r}, add_special_tokens={asked})",
            cause="a chat template writes the BOS itself; one more would double it.",
        )
