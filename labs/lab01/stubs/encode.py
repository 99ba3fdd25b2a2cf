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
    raise NotImplementedError("lab01 task 2: split_special")


def merge_word(pieces: Sequence[bytes], ranks: Mapping[Pair, int]) -> list[bytes]:
    """Cut a word into the tokens that BPE makes of its pieces (bytes, or characters).

    The neighbours of lowest rank are merged first, of equal ranks the leftmost, until no neighbours
    have a rank. The cost of a word of n pieces is O(n log n), and `ranks` is asked for 10 n pairs
    at most: a user's 100 kB without a space must not stop the engine.

    >>> merge_word([b"l", b"o", b"w"], {(b"o", b"w"): 0, (b"l", b"o"): 1})
    [b'l', b'ow']
    """
    raise NotImplementedError("lab01 task 2: merge_word")


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

    def __init__(self, *args, **kwargs):
        raise NotImplementedError("lab01 task 2: Encoder")
