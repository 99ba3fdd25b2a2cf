"""Tokens that are matched in a text as a whole, before words and merges. Given code."""

from dataclasses import dataclass

import regex


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
        if self.lstrip and (before := _SPACE_BEFORE.match(text, 0, start)):
            start = before.start()
        if self.rstrip and (behind := _SPACE.match(text, end)):
            end = behind.end()
        return start, end


_WORD, _SPACE, _SPACE_BEFORE = (regex.compile(p) for p in (r"\w", r"\s*", r"(?r)\s*"))
