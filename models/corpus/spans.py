"""Text whose parts carry their weight in the loss."""

from typing import NamedTuple

# A code that is being announced is random: learning to guess it would only be noise.
NOISE = 0.05
# What the user types has to be read, not written.
CONTEXT = 0.3
PROSE = 1.0
# The few tokens that decide whether an answer is right.
ANSWER = 4.0
# Recall comes late in training and rests on few tokens.
RECALLED = 8.0

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"


class Span(NamedTuple):
    """A piece of text and the weight of its tokens in the training loss."""

    text: str
    weight: float = PROSE


Spans = list[Span]


def plain(spans: Spans) -> str:
    """Return the text alone.

    >>> plain([Span("Mia's code is"), Span(" 7342", ANSWER), Span(".")])
    "Mia's code is 7342."
    """
    return "".join(span.text for span in spans)


def join(parts: list[Spans], separator: str = " ") -> Spans:
    """Concatenate passages, the separator glued to the front of each but the first.

    The space goes to the front of a word, as in the tokenizer's own pre-tokens, so that encoding
    span by span gives the same tokens as encoding the whole text.
    """
    joined: Spans = []
    for part in parts:
        if joined and part:
            first = part[0]
            joined.append(Span(separator + first.text, first.weight))
            joined.extend(part[1:])
        else:
            joined.extend(part)
    return joined
