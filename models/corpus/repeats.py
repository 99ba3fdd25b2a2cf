"""A list of words and numbers, said twice: what teaches copying quickest."""

from random import Random

from .facts import FACTS
from .names import EVERYONE
from .spans import ANSWER, NOISE, PROSE, Span, Spans

WORDS = (*EVERYONE, *sorted({fact.answer for fact in FACTS}))


def repeated_list(rng: Random, most: int) -> Spans:
    """Return up to that many random words and four-digit numbers, and then the same list again."""
    items = [
        f"{rng.randrange(10000):04d}" if rng.random() < 0.6 else rng.choice(WORDS)
        for _ in range(rng.randint(4, most))
    ]
    first, *rest = items
    told = "".join(f", {item}" for item in rest)
    return [
        Span("List: ", PROSE),
        Span(first + told, NOISE),
        Span(". Again: ", PROSE),
        Span(first, NOISE),
        Span(told, ANSWER / 2),
        Span("."),
    ]
