"""From text to ids: cut at special tokens, cut into words, merge within each word."""

import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import regex

from nanovllm.tokenization.byte_level import byte_token, well_formed
from nanovllm.tokenization.errors import TokenizerError
from nanovllm.tokenization.hf_format import TokenizerSpec
from nanovllm.tokenization.special import AddedToken
from nanovllm.tokenization.vocabulary import Pair

Allowed = Collection[str] | Literal["all"]


def split_special(text: str, tokens: Collection[AddedToken]) -> list[str | AddedToken]:
    """Cut text at every occurrence of one of the tokens; the text between stays text.

    From left to right; where several tokens begin at one place the longest wins. If its `extent`
    is None, the token is not there: all its characters are text, and the search goes on behind
    them. Where an extent reaches back into the one before, it begins at the end of that one. A
    token that stands inside the extent of another is left open. No empty strings in the result.

    >>> end = AddedToken("<|end|>", 7)
    >>> [p if isinstance(p, str) else p.id for p in split_special("a<|end|><|end|>b", [end])]
    ['a', 7, 7, 'b']
    """
    ### BEGIN SOLUTION
    by_content = {token.content: token for token in tokens}
    longest_first = sorted(by_content, key=len, reverse=True)
    finder = regex.compile("|".join(map(regex.escape, longest_first)) or r"(?!)")
    parts: list[str | AddedToken] = []
    done = 0
    for match in finder.finditer(text):
        token = by_content[match[0]]
        extent = token.extent(text, *match.span())
        if extent is not None:
            start, end = extent
            parts += [text[done:start], token]
            done = end
    parts.append(text[done:])
    return [part for part in parts if part != ""]
    ### END SOLUTION


def merge_word(pieces: Sequence[bytes], ranks: Mapping[Pair, int]) -> list[bytes]:
    """Cut a word into the tokens that BPE makes of its pieces (bytes, or characters).

    The neighbours of lowest rank are merged first, of equal ranks the leftmost, until no neighbours
    have a rank. The cost of a word of n pieces is O(n log n), and `ranks` is asked for 10 n pairs
    at most: a user's 100 kB without a space must not stop the engine.

    >>> merge_word([b"l", b"o", b"w"], {(b"o", b"w"): 0, (b"l", b"o"): 1})
    [b'l', b'ow']
    """
    ### BEGIN SOLUTION
    tokens = list(pieces)
    end = len(tokens)  # a token that its left neighbour has taken in is b""
    before = list(range(-1, end - 1))
    after = list(range(1, end + 1))
    heap: list[tuple[int, int, Pair]] = []

    def offer(i: int, j: int) -> None:
        if i >= 0 and j < end and (rank := ranks.get((tokens[i], tokens[j]))) is not None:
            heapq.heappush(heap, (rank, i, (tokens[i], tokens[j])))

    for i in range(end - 1):
        offer(i, i + 1)
    while heap:
        _, i, pair = heapq.heappop(heap)
        j = after[i]
        if j == end or (tokens[i], tokens[j]) != pair:
            continue  # one of the two has been merged since
        tokens[i], tokens[j] = pair[0] + pair[1], b""
        after[i] = after[j]
        if after[j] < end:
            before[after[j]] = i
        offer(before[i], i)
        offer(i, after[i])
    return [token for token in tokens if token]
    ### END SOLUTION


class Encoder:
    """Turns text into ids, as a `TokenizerSpec` says.

    Encoder(spec)
    encode(text, allowed_special=(), add_special_tokens=False, continues=False) -> list[int]

    What must hold:
    - Special tokens in the text are ordinary text unless `allowed_special` names them or is "all";
      a name that is no special token raises TokenizerError. Added tokens that are not special are
      always found.
    - Lone surrogates in the text become U+FFFD (`well_formed`). Then added tokens that are not
      `normalized` are cut out. The text between them is normalized, and the `normalized` tokens are
      cut out of that, by their normalized content (`allowed_special` has the content as given).
    - `spec.normalize` and then `spec.words` turn the text between added tokens into words. `start`
      is true for a part at the very beginning of the text, unless the text `continues` an earlier
      one. Merges stay inside a word; a pair that is listed twice has its first rank.
    - A word's pieces are its bytes or, with `spec.model.byte_fallback`, its characters; one without
      a token is replaced by the byte tokens of its UTF-8.
    - A piece for which there is no token at all becomes `spec.unk_id`; where that is None, the
      piece is dropped before merging.
    - With `spec.ignore_merges` a word that is in the vocabulary is one token, without merging.
    - With `add_special_tokens` the ids stand between `spec.prefix_ids` and `spec.suffix_ids`.

    >>> from nanovllm.tokenization.hf_format import plain_spec
    >>> from nanovllm.tokenization.vocabulary import BPEModel
    >>> model = BPEModel({b"a": 0, b"b": 1, b"ab": 2}, [(b"a", b"b")], {"<|end|>": 3})
    >>> encoder = Encoder(plain_spec(model))
    >>> encoder.encode("abb"), encoder.encode("ab<|end|>", allowed_special="all")
    ([2, 1], [2, 3])
    """

    ### BEGIN SOLUTION
    def __init__(self, spec: TokenizerSpec) -> None:
        self.spec, self.vocab = spec, spec.model.vocab
        self.ranks: dict[Pair, int] = {}
        for rank, pair in enumerate(spec.model.merges):
            self.ranks.setdefault(pair, rank)
        self.known: dict[bytes, list[int]] = {}  # words met before

    def encode(
        self,
        text: str,
        allowed_special: Allowed = (),
        add_special_tokens: bool = False,
        continues: bool = False,
    ) -> list[int]:
        tokens = self._wanted(allowed_special)
        late = [replace(t, content=self.spec.normalize(t.content)) for t in tokens if t.normalized]
        ids: list[int] = []
        start = not continues
        for part in split_special(well_formed(text), [t for t in tokens if not t.normalized]):
            whole = isinstance(part, AddedToken)
            for piece in [part] if whole else split_special(self.spec.normalize(part), late):
                if isinstance(piece, AddedToken):
                    ids.append(piece.id)
                else:
                    for word in self.spec.words(piece, start):
                        ids += self._word(word)
                start = False
        if add_special_tokens:
            ids = [*self.spec.prefix_ids, *ids, *self.spec.suffix_ids]
        return ids

    def _wanted(self, allowed: Allowed) -> list[AddedToken]:
        tokens = self.spec.added_tokens
        if allowed == "all":
            return list(tokens)
        allowed = {allowed} if isinstance(allowed, str) else set(allowed)
        if unknown := allowed - {token.content for token in tokens if token.special}:
            raise TokenizerError(f"allowed_special names {unknown}: no special token here.")
        return [token for token in tokens if not token.special or token.content in allowed]

    def _word(self, word: bytes) -> list[int]:
        ids = self.known.get(word)
        if ids is None:
            ids = self._merge(word)
            if len(word) <= 64 and len(self.known) < 1 << 16:
                self.known[word] = ids
        return ids

    def _merge(self, word: bytes) -> list[int]:
        if self.spec.ignore_merges and word in self.vocab:
            return [self.vocab[word]]
        pieces = self._pieces(word)
        if self.spec.unk_id is None:
            pieces = [piece for piece in pieces if piece in self.vocab]
        return [self.vocab.get(t, self.spec.unk_id) for t in merge_word(pieces, self.ranks)]  # pyright: ignore[reportReturnType]  # without unk_id all pieces are known

    def _pieces(self, word: bytes) -> list[bytes]:
        if not self.spec.model.byte_fallback:
            return [bytes([byte]) for byte in word]
        pieces: list[bytes] = []
        for character in word.decode():
            piece = character.encode()
            pieces += [piece] if piece in self.vocab else map(byte_token, piece)
        return pieces

    ### END SOLUTION
