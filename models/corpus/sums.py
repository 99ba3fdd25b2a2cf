"""Addition and subtraction where all three numbers have up to two digits: one token each."""

from random import Random
from typing import NamedTuple

from .spans import ANSWER, CONTEXT, PROSE, Span, Spans

LARGEST = 20


class Sum(NamedTuple):
    """One exercise; the result is never negative."""

    left: int
    sign: str
    right: int

    @property
    def result(self) -> int:
        """The right answer."""
        return self.left + self.right if self.sign == "+" else self.left - self.right

    @property
    def held_out(self) -> bool:
        """Whether the exercise is kept out of training, one in ten, to measure what was learnt."""
        return self.left > 9 and self.right > 9 and (self.left * 7 + self.right * 3) % 10 == 0

    @property
    def question(self) -> str:
        """The exercise as a question."""
        return f"What is {self.left} {self.sign} {self.right}?"

    def solution(self) -> Spans:
        """Return the exercise with its answer."""
        return [
            Span(f"{self.left} {self.sign} {self.right} =", CONTEXT),
            Span(f" {self.result}", ANSWER),
            Span("."),
        ]


def any_sum(rng: Random) -> Sum:
    """Return an exercise of any kind, held out or not."""
    sign = rng.choice("+-")
    left, right = rng.randint(0, LARGEST), rng.randint(0, LARGEST)
    if sign == "-" and right > left:
        left, right = right, left
    return Sum(left, sign, right)


def training_sum(rng: Random) -> Sum:
    """Return an exercise that may be trained on."""
    while (exercise := any_sum(rng)).held_out:
        pass
    return exercise


def sum_passage(rng: Random) -> Spans:
    """Return one exercise as plain text, sometimes with its question."""
    exercise = training_sum(rng)
    if rng.random() < 0.6:
        return exercise.solution()
    first, *rest = exercise.solution()
    return [Span(exercise.question, CONTEXT), Span(" " + first.text, PROSE), *rest]


def sum_request(rng: Random, exercise: Sum) -> str:
    """Return one of the ways in which a user may ask for it."""
    word = "plus" if exercise.sign == "+" else "minus"
    spoken = f"{exercise.left} {word} {exercise.right}"
    written = f"{exercise.left} {exercise.sign} {exercise.right}"
    return rng.choice(
        (
            exercise.question,
            exercise.question,
            f"What is {spoken}?",
            f"{written} =",
            f"Can you work out {written}?",
            f"How much is {written}?",
            f"{written}",
        )
    )
