"""Task 1: training byte-pair encoding."""

from collections import Counter
from itertools import pairwise

import pytest

from grader import expect
from nanovllm.tokenization import bpe
from nanovllm.tokenization.bpe import PairCounts, merge_pair, train_bpe


def _merged(tokens, pair):
    """The oracle of a merge: consume the word from the left."""
    rest, out = list(tokens), []
    while rest:
        take = 2 if tuple(rest[:2]) == pair else 1
        out.append(b"".join(rest[:take]))
        del rest[:take]
    return out


def _pairs(words, freqs):
    """The oracle of the counts: everything counted again."""
    counts = Counter()
    for tokens, freq in zip(words, freqs, strict=True):
        for left, right in pairwise(tokens):
            counts[left, right] += freq
    return dict(counts)


def _slow_training(words, merges):
    """The oracle of training: recount after each merge; words as {bytes: frequency}."""
    corpus, learned = [[bytes([b]) for b in word] for word in words], []
    for _ in range(merges):
        counts = _pairs(corpus, words.values())
        if not counts or max(counts.values()) < 2:
            break
        pair = min(counts, key=lambda p: (-counts[p], p))
        corpus = [_merged(tokens, pair) for tokens in corpus]
        learned.append(pair)
    return learned


def _words(rng, count, letters="abcd", longest=9):
    """Random words over few letters, so that pairs repeat and overlap."""
    drawn = ["".join(rng.choice(list(letters), rng.integers(2, longest))) for _ in range(count)]
    return {word.encode(): int(rng.integers(1, 9)) for word in drawn}


@pytest.mark.check(task=1, points=3, title="A pair is merged from the left, without overlap")
def test_merge_pair(rng):
    samples = [[b"a"] * n for n in range(6)]
    samples += [[bytes([c]) for c in word] for word in _words(rng, 12, "ab")]
    samples += [[b"ab", b"a", b"ab", b"a", b"b"], [b"a", b"ab"], [b"aa", b"a", b"a"]]
    for pair in ((b"a", b"a"), (b"a", b"b"), (b"ab", b"a")):
        expect(
            [merge_pair(list(tokens), pair) for tokens in samples],
            [_merged(tokens, pair) for tokens in samples],
            call=f"merge_pair(tokens, {pair}) for {len(samples)} words",
            cause="a token belongs to one merge only, and the leftmost pair takes it first.",
        )


@pytest.mark.check(task=1, points=3, title="Pairs are counted as often as their word occurs")
def test_counts(rng):
    words = {b"aaa": 5, b"ababab": 3, b"x": 7} | _words(rng, 20)
    pairs = PairCounts(words)
    split = [[bytes([b]) for b in word] for word in words]
    expect(
        dict(pairs.counts),
        _pairs(split, words.values()),
        call="PairCounts(words).counts",
        given={"words": words},
        cause="each occurrence of a pair adds the frequency of its word.",
    )
    where = {p: {i for i, t in enumerate(split) if p in pairwise(t)}
             for p in pairs.counts}  # fmt: skip
    expect(
        {pair: sorted(found) for pair, found in pairs.where.items() if found},
        {pair: sorted(found) for pair, found in where.items()},
        call="PairCounts(words).where",
        given={"words": words},
        cause="`where` holds the index of every word with the pair.",
    )


@pytest.mark.check(task=1, points=4, title="After each merge the counts are those of a recount")
def test_merge_keeps_counts(rng):
    words = {b"aaaa": 3, b"abab": 2} | _words(rng, 25)
    pairs = PairCounts(words)
    corpus = [[bytes([b]) for b in word] for word in words]
    freqs = list(words.values())
    for number in range(12):
        counts = _pairs(corpus, freqs)
        if not counts:
            break
        pair = min(counts, key=lambda p: (-counts[p], p))
        corpus = [_merged(tokens, pair) for tokens in corpus]
        pairs.merge(pair)
        expect(
            [list(tokens) for tokens in pairs.words],
            corpus,
            call=f"words after merge {number + 1}, of {pair}",
            cause="every word that holds the pair is merged, and no other.",
        )
        expect(
            dict(pairs.counts),
            _pairs(corpus, freqs),
            call=f"counts after merge {number + 1}, of {pair}",
            cause="pairs that are gone have left `counts`; the neighbours' pairs are new ones.",
        )


class _Watched(list):
    """The words, noting which of them are read."""

    def __init__(self, words):
        super().__init__(words)
        self.reads = Counter()

    def __getitem__(self, index):
        for one in range(len(self))[index] if isinstance(index, slice) else [index]:
            self.reads[one] += 1
        return super().__getitem__(index)

    def __iter__(self):
        return (self[index] for index in range(len(self)))


@pytest.mark.check(task=1, points=3, title="A merge looks only at the words that hold the pair")
def test_merge_is_incremental(rng, monkeypatch):
    words = {b"zq": 2, b"azq": 1} | _words(rng, 40)
    pairs = PairCounts(words)
    pairs.words = watched = _Watched(pairs.words)
    pairs.merge((b"z", b"q"))
    expect(
        sorted(watched.reads),
        [0, 1],
        call="words read by merge((b'z', b'q')), which stands in words 0 and 1",
        cause="the counts are to be updated, not counted again.",
    )
    entered = []

    class Counted(PairCounts):
        def add_word(self, index):
            entered.append(index)
            super().add_word(index)

    monkeypatch.setattr(bpe, "PairCounts", Counted)
    text = " ".join("".join(rng.choice(list("abcdef"), 6)) for _ in range(60))
    learned = train_bpe([text], 256 + 20).merges
    expected = corpus = [[bytes([b]) for b in word] for word in bpe.word_counts([text])]
    limit = len(expected)
    for pair in learned:
        limit += sum(pair in pairwise(t) for t in corpus)
        corpus = [_merged(tokens, pair) for tokens in corpus]
    expect.that(
        len(learned) == 20 and 0 < len(entered) <= limit,
        f"{limit} entries of a word are enough for 20 merges",
        observed=len(entered),
        call="train_bpe([text], 276), counting the calls of add_word",
        cause="make one PairCounts, then merge in it; a new one for every merge counts all again.",
    )


@pytest.mark.check(task=1, points=2, title="Of equally frequent pairs the smaller wins")
def test_ties():
    for words, best in (
        ({b"mm": 4, b"zy": 4, b"ab": 4, b"aa": 3}, (b"a", b"b")),
        ({b"cb": 2, b"ca": 2, b"d": 9}, (b"c", b"a")),
        ({b"ab": 2, b"zz": 5}, (b"z", b"z")),
        ({b"ab": 1, b"cd": 1}, None),
        ({b"a": 9}, None),
    ):
        expect(
            PairCounts(words).best(),
            best,
            call=f"PairCounts({words}).best()",
            cause="most frequent first, then the smaller pair; a pair seen once is worth no token.",
        )


@pytest.mark.check(task=1, points=3, title="Training learns the merges of the slow trainer")
def test_training(rng):
    text = " ".join("".join(rng.choice(list("abcé🙂"), rng.integers(1, 8))) for _ in range(80))
    words = bpe.word_counts([text, text[:50]])
    for size in (256, 257, 300):
        model = train_bpe([text, text[:50]], size)
        learned = _slow_training(words, size - 256)
        expect(
            model.merges,
            learned,
            call=f"train_bpe(texts, {size}).merges",
            given={"texts": [text, text[:50]]},
            cause="vocab_size counts the 256 bytes; merges are noted in the order learned.",
        )
        tokens = [bytes([b]) for b in range(256)] + [left + right for left, right in learned]
        expect(
            model.vocab,
            {token: id for id, token in enumerate(dict.fromkeys(tokens))},
            call=f"train_bpe(texts, {size}).vocab",
            cause="bytes are 0..255, then one id a merge, in order.",
        )


@pytest.mark.check(task=1, points=2, title="Special tokens have ids and take no part in merges")
def test_special_tokens(rng):
    part = "".join(rng.permutation(list("opqrstuvwxyz")))
    texts = [f"{part}<|end|><|end|><|end|>" * 6]
    model = train_bpe(texts, 256 + 4 + 2, special_tokens=["<|end|>", "<|pad|>"])
    expect(
        [pair for pair in model.merges if b"<" in pair[0] + pair[1] or b"|" in pair[0] + pair[1]],
        [],
        call="merges over special tokens in train_bpe(texts, 262, ['<|end|>', '<|pad|>'])",
        given={"texts": texts},
        cause="special tokens are cut out of the text before words are counted.",
    )
    expect(
        {"special_tokens": model.special_tokens, "merges": len(model.merges)},
        {"special_tokens": {"<|end|>": 260, "<|pad|>": 261}, "merges": 4},
        call="train_bpe(texts, 262, ['<|end|>', '<|pad|>'])",
        cause="vocab_size has room for 256 bytes, 4 merges and 2 special tokens, in this order.",
    )
    short = train_bpe(["ab ab"], 300, special_tokens=["<|end|>"])
    expect(
        short.special_tokens,
        {"<|end|>": 256 + len(_slow_training(bpe.word_counts(["ab ab"]), 40))},
        call="train_bpe(['ab ab'], 300, ['<|end|>']).special_tokens",
        cause="where training stops early the special tokens follow the last merge, without a gap.",
    )
