"""Training byte-pair encoding: `train_bpe` learns a vocabulary from texts."""

### BEGIN SOLUTION
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from itertools import pairwise

import regex

from nanovllm.tokenization import errors, vocabulary
from nanovllm.tokenization.byte_level import well_formed
from nanovllm.tokenization.pretokenize import PATTERN_GPT2, pretokenize

Pair = vocabulary.Pair
Texts = Iterable[str]


def train_bpe(
    texts: Texts, vocab_size: int, special_tokens: Texts = (), pattern: str = PATTERN_GPT2
) -> vocabulary.BPEModel:
    """Learn a byte-level BPE vocabulary of at most `vocab_size` ids from texts.

    >>> model = train_bpe(["low low lower"], vocab_size=259, special_tokens=["<|end|>"])
    >>> model.merges, model.vocab[b"low"], model.special_tokens
    ([(b'l', b'o'), (b'lo', b'w')], 257, {'<|end|>': 258})
    """
    special_tokens = list(special_tokens)
    _refuse(texts, vocab_size, special_tokens)
    corpus = _Corpus(_count_words(texts, special_tokens, pattern))
    vocab = {bytes([byte]): byte for byte in range(256)}
    merges: list[Pair] = []
    while 256 + len(merges) + len(special_tokens) < vocab_size and (pair := corpus.best()):
        corpus.merge(pair)
        merges.append(pair)
        vocab.setdefault(pair[0] + pair[1], len(vocab))
    specials = {token: len(vocab) + index for index, token in enumerate(special_tokens)}
    return vocabulary.BPEModel(vocab, merges, specials, pattern)


def _refuse(texts: Texts, vocab_size: int, special_tokens: Collection[str]) -> None:
    if isinstance(texts, str):
        raise errors.TokenizerError("texts is one string; pass a list of texts, as in [text].")
    if len(set(special_tokens)) < len(special_tokens) or "" in special_tokens:
        raise errors.TokenizerError(
            f"special_tokens {special_tokens} must be distinct and not empty."
        )
    least = 256 + len(special_tokens)
    if vocab_size < least:
        raise errors.TokenizerError(
            f"vocab_size {vocab_size} is too small; ask for {least} or more."
        )


def _count_words(texts: Texts, specials: Collection[str], pattern: str) -> Counter[bytes]:
    """How often each word occurs; special tokens are cut out first."""
    longest_first = sorted(specials, key=len, reverse=True)
    cuts = regex.compile("|".join(map(regex.escape, longest_first)) or r"(?!)")
    counts: Counter[bytes] = Counter()
    for text in texts:
        for part in cuts.split(well_formed(text)):
            counts.update(word.encode() for word in pretokenize(part, pattern))
    return counts


class _Corpus:
    """Words as tokens, with the counts of neighbouring pairs kept up to date merge by merge."""

    def __init__(self, words: Counter[bytes]) -> None:
        self.words = [[bytes([byte]) for byte in word] for word in words]
        self.freqs = list(words.values())
        self.counts: Counter[Pair] = Counter()
        self.where: defaultdict[Pair, set[int]] = defaultdict(set)  # the words that hold a pair
        for index in range(len(self.words)):
            self._count(index, 1)

    def best(self) -> Pair | None:
        """The most frequent pair, of equals the smallest; None if no pair occurs twice."""
        count, pair = min(((-n, pair) for pair, n in self.counts.items()), default=(0, None))
        return pair if count <= -2 else None

    def merge(self, pair: Pair) -> None:
        """Make one token of the pair in the words that hold it."""
        for index in self.where.pop(pair):
            self._count(index, -1)
            self.words[index] = _merged(self.words[index], pair)
            self._count(index, 1)

    def _count(self, index: int, sign: int) -> None:
        """Add a word's pairs to the counts, or take them out."""
        for pair in pairwise(self.words[index]):
            self.counts[pair] += sign * self.freqs[index]
            if self.counts[pair] == 0:
                del self.counts[pair]
            if sign > 0:
                self.where[pair].add(index)
            elif pair in self.where:
                self.where[pair].discard(index)


def _merged(tokens: list[bytes], pair: Pair) -> list[bytes]:
    """A word's tokens with the pair made one token wherever it stands, from the left."""
    merged: list[bytes] = []
    i = 0
    while i < len(tokens):
        if tuple(tokens[i : i + 2]) == pair:
            merged.append(pair[0] + pair[1])
            i += 2
        else:
            merged.append(tokens[i])
            i += 1
    return merged


### END SOLUTION
