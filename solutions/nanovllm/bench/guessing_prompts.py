"""Prompts of five kinds, which differ in how well their answers can be guessed."""

import random
from collections.abc import Callable

PEOPLE = ("Mia", "Tom", "Ben", "Anna", "Max", "Lily", "Sam", "Kira")
ANIMALS = ("cat", "fox", "bear", "dog", "bird", "horse", "rabbit", "frog")
COUNTRIES = ("France", "Spain", "Italy", "Iceland", "Ireland", "Iraq", "Japan", "Norway")
KINDS = ("stories", "facts", "sums", "recall", "lists")


def prompts(kind: str, count: int) -> list[str]:
    """So many prompts of a kind, of which few are alike; the same ones each time.

    >>> prompts("facts", 1)
    ['The capital of Norway is']
    """
    rng = random.Random(kind)
    return [_MAKE[kind](rng) for _ in range(count)]


def _chat(text: str) -> str:
    """A question as the bundled model was trained on it."""
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def _story(rng: random.Random) -> str:
    opening = rng.choice(("Once upon a time", "One day", "One cold morning", "Long ago"))
    return f"{opening} a {rng.choice(('small', 'kind', 'little'))} {rng.choice(ANIMALS)}"


def _fact(rng: random.Random) -> str:
    country = rng.choice(COUNTRIES)
    if rng.random() < 0.5:
        return f"The capital of {country} is"
    return _chat(f"What is the capital of {country}?")


def _sum(rng: random.Random) -> str:
    return _chat(f"What is {rng.randint(1, 20)} plus {rng.randint(1, 20)}?")


def _recall(rng: random.Random) -> str:
    people = rng.sample(PEOPLE, 5)
    told = " ".join(f"{name}'s code is {_code(rng)}." for name in people)
    asked = f"What is {rng.choice(people)}'s code?"
    return _chat(f"{told} {asked}") if rng.random() < 0.5 else f"{told} {asked}"


def _list(rng: random.Random) -> str:
    items = [rng.choice((_code(rng), rng.choice(PEOPLE))) for _ in range(rng.randint(6, 14))]
    return f"List: {', '.join(items)}. Again: {items[0]},"


def _code(rng: random.Random) -> str:
    return f"{rng.randrange(10000):04d}"


_MAKE: dict[str, Callable[[random.Random], str]] = dict(
    zip(KINDS, (_story, _fact, _sum, _recall, _list), strict=True)
)
