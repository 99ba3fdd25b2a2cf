"""Byte-pair encoding, the training half: which pairs of tokens become one, and in which order.

Sennrich, Haddow, Birch, "Neural machine translation of rare words with subword units" (2016);
over bytes since Radford et al., "Language models are unsupervised multitask learners" (2019).
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import regex

from nanovllm.tokenization.byte_level import well_formed
from nanovllm.tokenization.errors import TokenizerError
from nanovllm.tokenization.pretokenize import PATTERN_GPT2, pretokenize

Pair = tuple[bytes, bytes]


@dataclass(frozen=True)
class BPEModel:
    """A trained vocabulary: `vocab` gives each token's id, `merges` the pairs in learned order."""

    vocab: dict[bytes, int]
    merges: list[Pair]
    special_tokens: dict[str, int] = field(default_factory=dict)
    pattern: str = PATTERN_GPT2


def word_counts(
    texts: Iterable[str], pattern: str = PATTERN_GPT2, special_tokens: Collection[str] = ()
) -> Counter[bytes]:
    """How often each word occurs, as bytes; special tokens are cut out and not counted.

    >>> word_counts(["to be<|end|>to be"], special_tokens=["<|end|>"])
    Counter({b'to': 2, b' be': 2})
    """
    longest_first = sorted(special_tokens, key=len, reverse=True)
    cuts = regex.compile("|".join(map(regex.escape, longest_first)) or r"(?!)")
    counts: Counter[bytes] = Counter()
    for text in texts:
        for part in cuts.split(well_formed(text)):
            counts.update(word.encode() for word in pretokenize(part, pattern))
    return counts


def merge_pair(tokens: list[bytes], pair: Pair) -> list[bytes]:
    """Return a word's tokens with each occurrence of `pair` made one token, from the left.

    Occurrences do not overlap: the middle `a` of three belongs to the first pair.

    >>> merge_pair([b"a", b"a", b"a", b"b"], (b"a", b"a"))
    [b'aa', b'a', b'b']
    """
    ### BEGIN SOLUTION
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


class PairCounts:
    """How often each pair of neighbours occurs in the corpus, kept up to date merge by merge.

    words:  word index -> its tokens now (to begin with one token a byte)
    freqs:  word index -> how often the word occurs in the corpus
    counts: pair -> its occurrences in the corpus; pairs that no longer occur are not in it
    where:  pair -> indices of the words that hold it
    """

    def __init__(self, words: Mapping[bytes, int]) -> None:
        self.words: list[list[bytes]] = [[bytes([byte]) for byte in word] for word in words]
        self.freqs: list[int] = list(words.values())
        self.counts: dict[Pair, int] = {}
        self.where: dict[Pair, set[int]] = defaultdict(set)
        for index in range(len(self.words)):
            self.add_word(index)

    def add_word(self, index: int) -> None:
        """Enter the pairs of one word into `counts` (times the word's frequency) and `where`.

        >>> PairCounts({b"aaa": 5}).counts
        {(b'a', b'a'): 10}
        """
        ### BEGIN SOLUTION
        tokens = self.words[index]
        for pair in pairwise(tokens):
            self.counts[pair] = self.counts.get(pair, 0) + self.freqs[index]
            self.where[pair].add(index)
        ### END SOLUTION

    def remove_word(self, index: int) -> None:
        """Undo `add_word`; a pair whose count falls to zero leaves `counts` and `where`."""
        ### BEGIN SOLUTION
        tokens = self.words[index]
        for pair in pairwise(tokens):
            self.counts[pair] -= self.freqs[index]
            self.where[pair].discard(index)
            if self.counts[pair] == 0:
                del self.counts[pair], self.where[pair]
        ### END SOLUTION

    def best(self) -> Pair | None:
        """Return the most frequent pair, of equals the smallest, or None if none occurs twice.

        Pairs compare as tuples of bytes: first the left token, then the right one.

        >>> PairCounts({b"ab": 2, b"cd": 2, b"xy": 1}).best()
        (b'a', b'b')
        """
        ### BEGIN SOLUTION
        if not self.counts:
            return None
        count, pair = min((-count, pair) for pair, count in self.counts.items())
        return pair if count <= -2 else None
        ### END SOLUTION

    def merge(self, pair: Pair) -> None:
        """Make `pair` one token everywhere; only the words that hold it are looked at.

        >>> counts = PairCounts({b"abc": 3, b"bc": 1})
        >>> counts.merge((b"b", b"c"))
        >>> counts.words, counts.counts
        ([[b'a', b'bc'], [b'bc']], {(b'a', b'bc'): 3})
        """
        ### BEGIN SOLUTION
        for index in list(self.where[pair]):
            self.remove_word(index)
            self.words[index] = merge_pair(self.words[index], pair)
            self.add_word(index)
        ### END SOLUTION


def train_bpe(
    texts: Iterable[str],
    vocab_size: int,
    special_tokens: Collection[str] = (),
    pattern: str = PATTERN_GPT2,
) -> BPEModel:
    """Learn a byte-level BPE vocabulary of at most `vocab_size` ids from texts.

    Ids: the 256 bytes are 0..255 in order, then one id a merge as it is learned (none for a merge
    into a token that exists), then the special tokens in the order given. Training ends after
    `vocab_size` - 256 - the special tokens merges, or when no pair occurs twice. A `vocab_size`
    without room for bytes and special tokens, and a special token that is empty or given twice,
    raise TokenizerError.

    >>> model = train_bpe(["low low lower"], vocab_size=259, special_tokens=["<|end|>"])
    >>> model.merges, model.vocab[b"low"], model.special_tokens
    ([(b'l', b'o'), (b'lo', b'w')], 257, {'<|end|>': 258})
    """
    if isinstance(texts, str):
        raise TokenizerError("texts is one string; pass a list of texts, as in [text].")
    if len(set(special_tokens)) < len(special_tokens) or "" in special_tokens:
        raise TokenizerError(
            f"special_tokens {list(special_tokens)} must be distinct and none of them empty."
        )
    least = 256 + len(special_tokens)
    if vocab_size < least:
        raise TokenizerError(
            f"vocab_size {vocab_size} has no room for the 256 bytes and {len(special_tokens)} "
            f"special tokens; ask for {least} or more."
        )
    ### BEGIN SOLUTION
    pairs = PairCounts(word_counts(texts, pattern, special_tokens))
    vocab = {bytes([byte]): byte for byte in range(256)}
    merges: list[Pair] = []
    while 256 + len(merges) + len(special_tokens) < vocab_size and (pair := pairs.best()):
        pairs.merge(pair)
        merges.append(pair)
        vocab.setdefault(pair[0] + pair[1], len(vocab))
    specials = {token: len(vocab) + index for index, token in enumerate(special_tokens)}
    return BPEModel(vocab, merges, specials, pattern)
    ### END SOLUTION
