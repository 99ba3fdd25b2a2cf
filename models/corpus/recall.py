"""Codes to remember: announced once, asked for any distance later."""

from random import Random

from .facts import fact_passage
from .names import people
from .spans import CONTEXT, NOISE, RECALLED, Span, Spans, join
from .stories import story
from .sums import sum_passage


def any_code(rng: Random) -> str:
    """Return four digits."""
    return f"{rng.randrange(10000):04d}"


def announce(name: str, code: str) -> Spans:
    """Return the sentence that tells the code."""
    return [Span(f"{name}'s code is"), Span(f" {code}", NOISE), Span(".")]


def answer(name: str, code: str) -> Spans:
    """Return the same sentence, where the code has become something to know."""
    return [Span(f"{name}'s code is"), Span(f" {code}", RECALLED), Span(".")]


def question(name: str) -> str:
    """Return the question for a code."""
    return f"What is {name}'s code?"


def ask(name: str, code: str) -> Spans:
    """Return question and answer as plain text."""
    first, *rest = answer(name, code)
    return [Span(question(name), CONTEXT), Span(" " + first.text), *rest]


def filler(rng: Random) -> Spans:
    """Return a passage that has nothing to do with codes."""
    kind = rng.random()
    if kind < 0.55:
        return [Span(story(rng))]
    return fact_passage(rng) if kind < 0.95 else sum_passage(rng)


def dense_recall(rng: Random, most: int, gaps: float = 0.0) -> Spans:
    """Return many codes and then a question for each: the quickest way to learn recall.

    Gaps are short passages in between, with that probability. Without them the sentences stand
    at regular distances, and the model learns to count back instead of looking for the name.
    """
    codes = {name: any_code(rng) for name in people(rng, rng.randint(1, most))}
    asked = list(codes.items())
    rng.shuffle(asked)
    parts: list[Spans] = []
    for part in [announce(*told) for told in codes.items()] + [ask(*known) for known in asked]:
        if gaps and rng.random() < gaps:
            parts.append(rng.choice((fact_passage, sum_passage))(rng))
        parts.append(part)
    return join(parts)


def long_recall(rng: Random, words: int, words_per_code: int = 100) -> Spans:
    """Return codes told and asked for between passages, about that many words in all.

    Most people are asked for once, late: a repeated answer would shorten the distance.
    """
    count = rng.randint(1, 4 + words // words_per_code)
    waiting = [(name, any_code(rng)) for name in people(rng, count)]
    early = rng.random() < 0.5
    known: list[tuple[str, str]] = []
    parts: list[Spans] = []
    length = 0
    while length < words or waiting or known:
        done = length >= words
        if waiting and (done or rng.random() < (0.8 if early else 0.4)):
            known.append(waiting.pop())
            part = announce(*known[-1])
        elif known and (done or rng.random() < len(known) * 6 / max(words, 60)):
            part = ask(*known.pop(rng.randrange(len(known))))
        elif done:
            continue
        else:
            part = filler(rng)
        parts.append(part)
        length += sum(len(span.text.split()) for span in part)
    return join(parts)
