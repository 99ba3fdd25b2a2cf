"""A fixed list of plain facts, each with its question, its statement and its answer."""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from . import tables
from .spans import ANSWER, CONTEXT, PROSE, Span, Spans


class Fact(NamedTuple):
    """One fact: the statement is stem + " " + answer + "."."""

    question: str
    stem: str
    answer: str
    kind: str

    def statement(self, weight: float = PROSE) -> Spans:
        """Return the fact as a sentence whose last words decide."""
        return [Span(self.stem, weight), Span(f" {self.answer}", ANSWER), Span(".")]


def _from_table(kind: str, question: str, stem: str, rows: dict[str, str]) -> list[Fact]:
    return [Fact(question.format(k), stem.format(k), v, kind) for k, v in rows.items()]


def _article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _with_article(rows: dict[str, str]) -> dict[str, str]:
    return {_article(k): v for k, v in rows.items()}


def _capitalised(facts: list[Fact]) -> list[Fact]:
    return [fact._replace(stem=fact.stem[0].upper() + fact.stem[1:]) for fact in facts]


def _cycle(words: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    following = dict(zip(words, [*words[1:], words[0]]))
    return following, {after: before for before, after in following.items()}


def _all_facts() -> list[Fact]:
    after_day, before_day = _cycle(tables.DAYS)
    after_month, before_month = _cycle(tables.MONTHS)
    numbers = tables.NUMBERS
    facts = [
        *_from_table(
            "capital", "What is the capital of {}?", "The capital of {} is", tables.CAPITALS
        ),
        *_from_table("continent", "Which continent is {} in?", "{} is in", tables.CONTINENTS),
        *_from_table(
            "language",
            "What language do people speak in {}?",
            "People in {} speak",
            tables.LANGUAGES,
        ),
        *_from_table("sound", "What does {} say?", "{} says", _with_article(tables.SOUNDS)),
        *_from_table("young", "What is a young {} called?", "A young {} is called a", tables.YOUNG),
        *_from_table("home", "Where does {} live?", "{} lives in", _with_article(tables.HOMES)),
        *_from_table("food", "What does {} eat?", "{} eats", _with_article(tables.FOODS)),
        *_from_table(
            "legs",
            "How many legs does {} have?",
            "The number of legs of {} is",
            _with_article(tables.LEGS),
        ),
        *_from_table("class", "What kind of animal is {}?", "{} is", _with_article(tables.CLASSES)),
        *_from_table("colour", "What colour is {}?", "The colour of {} is", tables.COLOURS),
        *_from_table("mix", "What do {} make?", "{} make", tables.MIXES),
        *_from_table(
            "opposite", "What is the opposite of {}?", "The opposite of {} is", tables.OPPOSITES
        ),
        *_from_table("plural", "What is the plural of {}?", "The plural of {} is", tables.PLURALS),
        *_from_table(
            "past", "What is the past tense of {}?", "The past tense of {} is", tables.PAST
        ),
        *_from_table(
            "shape",
            "How many sides does {} have?",
            "The number of sides of {} is",
            _with_article(tables.SIDES),
        ),
        *_from_table("day", "What day comes after {}?", "The day after {} is", after_day),
        *_from_table("day", "What day comes before {}?", "The day before {} is", before_day),
        *_from_table("month", "What month comes after {}?", "The month after {} is", after_month),
        *_from_table(
            "month", "What month comes before {}?", "The month before {} is", before_month
        ),
        *_from_table(
            "number",
            "What number comes after {}?",
            "The number after {} is",
            dict(zip(numbers, numbers[1:])),
        ),
        *_from_table(
            "number",
            "What number comes before {}?",
            "The number before {} is",
            dict(zip(numbers[1:], numbers)),
        ),
        *_from_table("job", "What does {} do?", "{}", _with_article(tables.JOBS)),
        *[
            Fact(
                f"How many {key}?", f"The number of {key.replace(' are ', ' ')} is", count, "count"
            )
            for key, count in tables.COUNTS.items()
        ],
        *_from_table("tool", "What do you use to {}?", "You {} with", tables.TOOLS),
        *[Fact(*row, "world") for row in tables.WORLD],
    ]
    return _capitalised(facts)


FACTS: list[Fact] = _all_facts()


def fact_passage(rng: Random) -> Spans:
    """Return one fact as plain text, in one of its forms."""
    fact = rng.choice(FACTS)
    form = rng.random()
    if form < 0.45:
        return fact.statement()
    stem, answer, stop = fact.statement()
    if form < 0.8:
        return [Span(fact.question, CONTEXT), Span(" " + stem.text), answer, stop]
    return [
        Span(f"Question: {fact.question}\n", CONTEXT),
        Span("Answer: " + stem.text),
        answer,
        stop,
    ]


def fact_request(rng: Random, fact: Fact) -> str:
    """Return one of the ways in which a user may ask for it."""
    question = fact.question
    lower = question[0].lower() + question[1:]
    return rng.choice(
        (
            question,
            question,
            question,
            question[:-1],
            lower,
            lower[:-1],
            f"Please tell me: {lower}",
            f"I have a question. {question}",
            question.replace("colour", "color"),
            f"{question} Please answer.",
        )
    )
