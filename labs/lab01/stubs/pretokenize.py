"""Text cut into words before BPE, which never merges across a cut. Given code.

The classes are the steps that a `tokenizer.json` of a byte-level model can name. Each takes words
and returns words; `ByteLevel` also writes them in the alphabet of `byte_level`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Protocol

import regex

from nanovllm.tokenization.byte_level import to_chars

SPACE = "▁"  # U+2581, SentencePiece's sign for a space
PATTERN_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
PATTERN_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERN_LLAMA3 = PATTERN_QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")

# Characters that came with Unicode 17 and 18. Models were trained when these were unassigned, so
# neither letters nor digits, and the tokenizers library still (0.23) sees them so; the newer
# tables of the regex package would cut other words.
_RANGES = """
    558 58B-58C 5C8-5C9 88F B53-B54 C5C CDC 1ACF-1AF0 208F 209D-209F 20C1-20C4 2B96 2E60-2E63
    A7CE-A7CF A7D2 A7D4 A7DD-A7F1 AB6C-AB6D FBC3-FBD2 FD90-FD91 FDC8-FDCE 107BB-107BF
    10940-10959 10EC5-10EFB 11B0A-11B67 11DB0-11DF1 1246F 12475-1247F 12550-12686 16EA0-16ED3
    16FF2-16FF6 187F8-187FF 18CD6-18CDA 18D09-191D2 1B123-1B128 1B168 1CCFA-1CCFC 1CEBA-1CEFD
    1D127-1D128 1D1EB-1D1FF 1D250-1D281 1D6A6 1DB00-1DB1C 1DF1F-1DF24 1DF2B-1DFFF 1E6C0-1E6FF
    1F1AE 1F6D8-1F6D9 1F777-1F77A 1F7DA-1F7DB 1F7F1-1F7FF 1F8D0-1F8D8 1FA54-1FA57 1FA8A-1FA8E
    1FAC8-1FACD 1FADD 1FAEA-1FAEF 1FAF9-1FAFA 1FBFA 2B73A-2B73F 2B81E 2CEA2-2CEAD 323B0-3FC3F
"""
_NEWER = regex.compile(
    "[" + "".join("-".join(chr(int(c, 16)) for c in r.split("-")) for r in _RANGES.split()) + "]"
)
_UNASSIGNED = "\U000dffff"


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> regex.Pattern:
    return regex.compile(pattern)


def _spans(text: str, pattern: str) -> list[tuple[int, int, bool]]:
    """The whole text as (start, end, matched), in order."""
    seen = text if text.isascii() else _NEWER.sub(_UNASSIGNED, text)
    spans, done = [], 0
    for match in _compiled(pattern).finditer(seen):
        start, end = match.span()
        if start == end:
            continue
        if done < start:
            spans.append((done, start, False))
        spans.append((start, end, True))
        done = end
    if done < len(text):
        spans.append((done, len(text), False))
    return spans


def pretokenize(text: str, pattern: str = PATTERN_GPT2) -> list[str]:
    """Cut text into words by a regular expression; nothing is lost, the words join to the text.

    >>> pretokenize("It's 2024, isn't it?")
    ['It', "'s", ' 2024', ',', ' isn', "'t", ' it', '?']
    """
    return [text[start:end] for start, end, _ in _spans(text, pattern)]


class Step(Protocol):
    """One stage of a pre-tokenizer: words in, words out."""

    def __call__(self, words: Iterable[str]) -> Iterable[str]: ...


@dataclass(frozen=True)
class Split:
    """Cut at the matches of a pattern; `behavior` says where the matches themselves go."""

    pattern: str
    behavior: str = "isolated"
    invert: bool = False

    def __call__(self, words: Iterable[str]) -> Iterable[str]:
        return chain.from_iterable(map(self._cut, words))

    def _cut(self, word: str) -> list[str]:
        if self.behavior == "isolated":
            return pretokenize(word, self.pattern)
        spans = [(start, end, hit != self.invert) for start, end, hit in _spans(word, self.pattern)]
        if self.behavior == "removed":
            return [word[start:end] for start, end, hit in spans if not hit]
        joined: list[tuple[int, int, bool]] = []
        for start, end, hit in spans if self.behavior != "merged_with_next" else spans[::-1]:
            if joined and self._joins(joined[-1][2], hit):
                first, last, _ = joined.pop()
                joined.append((min(first, start), max(last, end), hit))
            else:
                joined.append((start, end, hit))
        return [word[start:end] for start, end, _ in sorted(joined)]

    def _joins(self, before: bool, hit: bool) -> bool:
        if self.behavior == "contiguous":
            return before == hit
        return hit and not before


@dataclass(frozen=True)
class ByteLevel:
    """Write each word's UTF-8 bytes in the printable alphabet, after GPT-2's cut if asked."""

    add_prefix_space: bool = False
    use_regex: bool = True

    def __call__(self, words: Iterable[str]) -> Iterable[str]:
        for word in words:
            if self.add_prefix_space and not word.startswith(" "):
                word = " " + word
            for part in pretokenize(word, PATTERN_GPT2) if self.use_regex else [word]:
                yield to_chars(part.encode())


@dataclass(frozen=True)
class Metaspace:
    """SentencePiece's step: `▁` for each space and, as `prepend` says, one before the text.

    prepend: "always" before each part between special tokens, "first" before the beginning of the
    text only, "never"; not where there is one already. `split` cuts before each `▁`.
    """

    prepend: str = "always"
    split: bool = True

    def __call__(self, words: Iterable[str], start: bool = True) -> Iterable[str]:
        for word in words:
            word = word.replace(" ", SPACE)
            wanted = self.prepend == "always" or (self.prepend == "first" and start)
            if wanted and not word.startswith(SPACE):
                word = SPACE + word
            yield from (
                regex.findall(f"{SPACE}[^{SPACE}]*|[^{SPACE}]+", word) if self.split else [word]
            )


def cut(text: str, steps: Sequence[Step], start: bool = True) -> Iterable[str]:
    """Send text through the steps, lazily; `start`: it is the beginning of the whole text.

    >>> list(cut("a b", [ByteLevel()]))
    ['a', 'Ġb']
    """
    words: Iterable[str] = [text] if text else []
    for step in steps:
        words = step(words, start) if isinstance(step, Metaspace) else step(words)
    return words
