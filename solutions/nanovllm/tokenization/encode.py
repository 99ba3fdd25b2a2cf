"""Byte-pair encoding, the using half: one text cut at its special tokens, one word merged.

The rest of encoding is in `Tokenizer`, which holds what these two functions are given.
"""

import heapq
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import regex

from nanovllm.tokenization.bpe import Pair


@dataclass(frozen=True)
class AddedToken:
    """A token that is matched in the text as a whole, before words and merges.

    special:     a control token (`<|im_end|>`): honoured only where allowed, skipped on request;
                 others (`<think>`, a domain word) are ordinary text that is always one token
    normalized:  look for it in the normalized text rather than in the text as given
    lstrip, rstrip:  take the white space to its left, to its right, with it
    single_word: not inside a longer word
    """

    content: str
    id: int
    special: bool = True
    normalized: bool = False
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False

    def extent(self, text: str, start: int, end: int) -> tuple[int, int] | None:
        """Where the token really lies, given that its content is text[start:end].

        Its flags add white space on either side; None if it must be a word and is only part of one.

        >>> AddedToken("<|a|>", 7, rstrip=True).extent("x <|a|>  y", 2, 7)
        (2, 9)
        """
        inside = (start and _WORD.match(text, start - 1)) or _WORD.match(text, end)
        if self.single_word and inside:
            return None
        if self.lstrip:
            start = _SPACE_BEFORE.match(text, 0, start).start()
        if self.rstrip:
            end = _SPACE.match(text, end).end()
        return start, end


_WORD, _SPACE, _SPACE_BEFORE = (regex.compile(p) for p in (r"\w", r"\s*", r"(?r)\s*"))


def split_special(text: str, tokens: Collection[AddedToken]) -> list[str | AddedToken]:
    """Cut text at every occurrence of one of the tokens; the text between stays text.

    From left to right; where several tokens match at one place the longest wins. Where a token's
    `extent` is None it is not there; what it takes from text already cut it leaves. No empty
    strings in the result.

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


def merge_word(word: bytes, ranks: Mapping[Pair, int]) -> list[bytes]:
    """Cut a word into the tokens that BPE makes of it.

    Begin with one token a byte; merge the neighbours of lowest rank, of equal ranks the leftmost,
    and repeat until no neighbours have a rank. The order is that of the merges, not of the text.
    `ranks.get(pair)` is asked only for pairs that are new: 3 times a byte at most, in all, so that
    100 kB without a space do not stop the engine (a heap of ranks, O(n log n)).

    >>> merge_word(b"lower", {(b"e", b"r"): 2, (b"l", b"o"): 0, (b"lo", b"w"): 1})
    [b'low', b'er']
    """
    ### BEGIN SOLUTION
    end = len(word)
    tokens = [word[i : i + 1] for i in range(end)]  # a token taken in by its left neighbour: b""
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
