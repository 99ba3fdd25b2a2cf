"""Task 1: training byte-pair encoding."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import strategies as st

from grader import expect
from grader.checks.text_cases import lines_run, many_cases
from nanovllm.tokenization.bpe import train_bpe
from nanovllm.tokenization.errors import TokenizerError
from nanovllm.tokenization.pretokenize import PATTERN_GPT2, PATTERN_QWEN2, pretokenize


def _merged(tokens, pair):
    """The oracle of a merge: consume the word from the left."""
    rest, out = list(tokens), []
    while rest:
        take = 2 if tuple(rest[:2]) == pair else 1
        out.append(b"".join(rest[:take]))
        del rest[:take]
    return out


def _recounted(texts, merges, special=(), pattern=PATTERN_GPT2):
    """The oracle of training: everything is counted again for each merge."""
    for token in sorted(special, key=len, reverse=True):
        texts = [part for text in texts for part in text.split(token)]
    words = Counter(word.encode() for text in texts for word in pretokenize(text, pattern))
    corpus, learned = [([bytes([b]) for b in word], n) for word, n in words.items()], []
    for _ in range(merges):
        counts = Counter()
        for tokens, n in corpus:
            for pair in pairwise(tokens):
                counts[pair] += n
        if not counts or max(counts.values()) < 2:
            break
        pair = min(counts, key=lambda p: (-counts[p], p))
        corpus = [(_merged(tokens, pair), n) for tokens, n in corpus]
        learned.append(pair)
    return learned


def _learns(texts, merges, cause, special=(), **options):
    """Compare the merges of `train_bpe` with the oracle's."""
    size = 256 + len(special) + merges
    expect(
        list(train_bpe(texts, size, special, **options).merges),
        _recounted(texts, merges, special, **options),
        call=f"train_bpe(texts, {size}).merges",
        given={"texts": texts} | options,
        cause=cause,
    )


@pytest.mark.check(task=1, points=2, title="A pair counts as often as its word occurs")
def test_frequency(rng):
    often, seldom = (int(n) for n in rng.integers(4, 9, 2) * (3, 1))
    _learns(
        ["ab " * often + "xyz " * seldom, "cdcd " * (often // 2 + 1)],
        4,
        "each place of a pair adds the number of times that its word occurs.",
    )
    expect(
        list(train_bpe(iter(["to be", "to bed", "to be"]), 258).merges),
        _recounted(["to be", "to bed", "to be"], 2),
        call="train_bpe(iter(['to be', 'to bed', 'to be']), 258).merges",
        cause="texts may be an iterator, which can be read once only.",
    )


@pytest.mark.check(task=1, points=3, title="A token belongs to one merge, the leftmost")
def test_overlap():
    for length in range(2, 12):
        _learns(
            [f"{'a' * length} {'a' * length}b"],
            4,
            "a word is merged from the left, without overlap, wherever the pair stands in it.",
        )


@pytest.mark.check(task=1, points=2, title="A merge changes the pairs beside it")
def test_neighbours(rng):
    for letters in ("ab", "abc", "abcd"):
        words = ["".join(rng.choice([*letters], rng.integers(2, 9))) for _ in range(25)]
        _learns(
            [" ".join(words)],
            15,
            "x a b y loses the pairs x a and b y, and gains x ab and ab y.",
        )


@pytest.mark.check(task=1, points=2, title="Of equally frequent pairs the smaller wins")
def test_ties():
    for text in ("mm zy ab", "cb ca cb ca", "zz ab zz ab", "é~ é~ ~é ~é", "ba bab b"):
        _learns(
            [f"{text}\n{text}\n"],
            5,
            "of equal counts take the smaller pair: first its left token decides, then its right.",
        )


@pytest.mark.check(task=1, points=2, title="Training ends where it should; ids have no gaps")
def test_ends(rng):
    text = "".join(rng.permutation([*"abcdefgh"])) + " "
    for size in (256, 257, 260, 400):
        model = train_bpe([text * 2, "xy"], size)
        learned = _recounted([text * 2, "xy"], size - 256)
        expect(
            list(model.merges),
            learned,
            call=f"train_bpe(texts, {size}).merges",
            given={"texts": [text * 2, "xy"]},
            cause="vocab_size counts the 256 bytes; a pair that occurs once is not merged.",
        )
        tokens = [bytes([b]) for b in range(256)] + [left + right for left, right in learned]
        expect(
            model.vocab,
            {token: id for id, token in enumerate(dict.fromkeys(tokens))},
            call=f"train_bpe(texts, {size}).vocab",
            given={"texts": [text * 2, "xy"]},
            cause="the bytes are 0..255, then one id for each merge, in order.",
        )


@pytest.mark.check(task=1, points=2, title="Merges stay inside words, and words inside texts")
def test_words(rng):
    tail = "".join(rng.permutation([*"klmn"]))
    _learns(
        ["a b a b a b", "ab", "ba", f"{tail}2024", "2024"],
        9,
        "a pair never lies across the border of two words, or of two texts.",
    )
    broken = "ab\ud83d ab\ud83d"
    expect(
        list(train_bpe([broken], 260).merges),
        _recounted([broken.replace("\ud83d", "\ufffd")], 4),
        call=r"train_bpe(['ab\ud83d ab\ud83d'], 260).merges",
        cause="UTF-8 has no bytes for half a surrogate pair; `well_formed` makes U+FFFD of it.",
    )
    for pattern in (PATTERN_QWEN2, r"\S+|\s+", "xx"):
        _learns(
            ["12 12 xyxxxyx 1212 12\n"] * 2,
            7,
            "the words are those of the pattern that was given.",
            pattern=pattern,
        )
        expect(
            train_bpe(["ab"], 256, pattern=pattern).pattern,
            pattern,
            call=f"train_bpe(['ab'], 256, pattern={pattern!r}).pattern",
            cause="the model keeps the pattern: encoding must cut words as training did.",
        )


@pytest.mark.check(task=1, points=2, title="Special tokens have ids and take no part in merges")
def test_special_tokens(rng):
    part = "".join(rng.permutation([*"opqrstuvwxyz"]))
    texts = [f"{part}<|end|><|end|><|e><|end|>{part}" * 6, "<|end|>zyzy" * 40, "ended|ends" * 20]
    special = ["<|e>", "<|end|>", "<|end|>zyzy"]
    expect(
        list(train_bpe(texts, 256 + 3 + 8, special).merges),
        _recounted(texts, 8, special),
        call=f"train_bpe(texts, 267, {special}).merges",
        given={"texts": texts},
        cause="special tokens are cut out, the longest first, before words are counted.",
    )
    for corpus, size, names in (
        (texts, 262, ["<|end|>", "<|pad|>"]),
        (["ab ab"], 300, ("<|pad|>", "<|end|>")),
    ):
        model = train_bpe(corpus, size, special_tokens=names)
        learned = _recounted(corpus, size - 256 - len(names), names)
        expect(
            {"special_tokens": model.special_tokens, "merges": len(model.merges)},
            {
                "special_tokens": {t: 256 + len(learned) + i for i, t in enumerate(names)},
                "merges": len(learned),
            },
            call=f"train_bpe(texts, {size}, {names})",
            given={"texts": corpus},
            cause="they count toward vocab_size; their ids follow the last merge, without a gap.",
        )


@pytest.mark.check(task=1, points=1, title="What cannot be trained is refused")
def test_refused():
    for arguments, why in (
        ((["a"], 255), "no room for the 256 bytes"),
        ((["a"], 257, ["<a>", "<b>"]), "no room for the special tokens"),
        ((["a"], 300, ["<a>", "<a>"]), "a special token twice"),
        ((["a"], 300, [""]), "an empty special token"),
        (("one text", 300), "one text in place of a list"),
    ):
        expect.raises(
            TokenizerError,
            lambda arguments=arguments: train_bpe(*arguments),
            call=f"train_bpe{arguments}",
            cause=f"{why} is refused with a TokenizerError.",
        )


@pytest.mark.check(task=1, points=2, title="A merge looks only at the words that hold the pair")
def test_work(rng):
    # Few pairs, so that looking for the best of them is cheap, in ever more words.
    chain = "cdefghijklmnopqrst"
    words = ["".join(rng.choice([*"ab"], 9)) for _ in range(800)]
    lines = []
    for count in (100, 800):
        text = f"{chain} " * 3 * count + " ".join(words[:count])
        few, many = (
            lines_run(lambda size=size, text=text: train_bpe([text], size))
            for size in (257, 256 + len(chain))
        )
        lines.append(many - few)
    expect.that(
        lines[1] <= 3 * lines[0] + 500,
        f"{len(chain) - 1} merges in one word take {lines[0]:,} lines of your code among 100 other "
        "words, and about as many among 800",
        observed=lines[1],
        call="train_bpe, counting the lines of your code that run for these merges",
        cause="the pairs of all words are counted again for every merge.",
    )


@pytest.mark.check(
    task=1, points=2, title="Any texts give the merges of the slow trainer", stress=True
)
def test_any_corpus(seed):
    word = st.text(st.sampled_from([*"aab é🙂1'"]), max_size=12)
    texts = st.lists(st.lists(word, max_size=6).map(" ".join), max_size=3)

    @many_cases(seed, 40, texts, st.integers(0, 30), st.sampled_from([(), ("a1",), ("b", "aab")]))
    def same(texts, merges, special):
        model = train_bpe(iter(texts), 256 + len(special) + merges, iter(special))
        learned = _recounted(texts, merges, special)
        tokens = [bytes([b]) for b in range(256)] + [left + right for left, right in learned]
        vocab = {token: id for id, token in enumerate(dict.fromkeys(tokens))}
        expect(
            [list(model.merges), model.vocab, model.special_tokens],
            [learned, vocab, {token: len(vocab) + i for i, token in enumerate(special)}],
            call=f"train_bpe({texts}, 256 + {len(special)} + {merges}, {special})",
            cause="the shortest texts that were found on which merges or ids differ.",
        )

    same()
