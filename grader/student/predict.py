"""Questions to guess at before the code is written; the student's own code answers them.

A lab's `predict.py` lists them as QUESTIONS; guesses stand in `.lab/state.json`.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

from grader.checks.isolated_imports import World
from grader.checks.unwritten import unwritten
from grader.course.errors import LabError
from grader.course.lab_toml import Lab, labs
from grader.student_files import lab_state
from grader.student_files.state_records import LabState, State


@dataclass(frozen=True)
class Question:
    """One question with a number as its answer, which `answer()` gets from the student's code."""

    key: str
    text: str
    unit: str
    tasks: tuple[int, ...]  # those that must pass before it is answered
    answer: Callable[[], float]


def questions(lab: Lab) -> list[Question]:
    """The questions of a lab, as its `predict.py` has them."""
    path = lab.folder / "predict.py"
    if not path.is_file():
        raise LabError(f"{lab.key} has no questions to predict (labs/{lab.key}/predict.py).")
    spec = importlib.util.spec_from_file_location(f"predict_of_{lab.key}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return list(module.QUESTIONS)


def question(lab: Lab, key: str) -> Question:
    """One question by its key."""
    found = questions(lab)
    for one in found:
        if one.key == key:
            return one
    known = ", ".join(one.key for one in found)
    raise LabError(f"{lab.key} has no question {key!r}; its questions are {known}.")


def number(value: object) -> float:
    """A guess as a number."""
    try:
        found = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        found = math.nan
    if not math.isfinite(found):
        raise LabError(f"a guess is a number, as 128 or 0.5, and not {value!r}.")
    return found


def guess(lab: Lab, key: str, value: object) -> float | None:
    """Record a guess; without a value, only see that there is such a question."""
    found = question(lab, key)
    if value is None:
        return None
    told = lab_state.record_guess(lab.key, found.key, number(value))
    if told:
        raise LabError(told)
    return number(value)


def is_open(question: Question, entry: LabState) -> bool:
    """Whether the answer may be seen: guessed at, and its tasks have passed."""
    return question.key in entry.guesses and set(question.tasks) <= set(entry.unlocked)


def computed(lab: Lab, asked: Question) -> float:
    """The answer of the code that is there; an error of it is told in one sentence.

    Where labs below are not here, the answer comes as in the checks: on their stand-ins.
    """
    below = {f"nanovllm.{one.package}" for one in labs()} - {f"nanovllm.{lab.package}"}
    try:
        return float(asked.answer())
    except Exception as error:
        alone = isinstance(error, ModuleNotFoundError) and error.name in below
        if not alone or World.current:
            absent = unwritten(error)
            why = f"{absent} is not written yet" if absent else f"{type(error).__name__}: {error}"
            says = f"question {asked.key} has no answer from your code: {why.rstrip('.')}."
            raise LabError(says) from None
    World(lab.key).enter()
    return computed(lab, question(lab, asked.key))


def told(lab: Lab, question: Question, records: State) -> str:
    """The question, the guess, and the answer or what it waits for."""
    entry = records.lab(lab.key)
    lines = [f"{question.key}. {question.text}"]
    if question.key not in entry.guesses:
        command = f"lab predict {lab.number:02d} {question.key} NUMBER"
        unit = question.unit if question.unit.startswith("(") else f"in {question.unit}"
        return "\n".join([*lines, f"   your guess {unit}: {command}"])
    lines.append(f"   you guessed {entry.guesses[question.key]:g} {question.unit}")
    missing = sorted(set(question.tasks) - set(entry.unlocked))
    if missing:
        word = "task" if len(missing) == 1 else "tasks"
        waits = " and ".join(map(str, missing))
        lines.append(f"   your code answers once {word} {waits} of {lab.key} passed all checks")
    else:
        lines.append(f"   your code says {computed(lab, question):.4g} {question.unit}")
    return "\n".join(lines)
