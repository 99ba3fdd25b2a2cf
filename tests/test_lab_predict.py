"""`lab predict`, and the helpers by which a notebook asks, answers and draws."""

from __future__ import annotations

from pathlib import Path

import pytest

from grader.course.lab_toml import find_lab
from grader.student import notebook
from grader.student.predict import computed, question
from tests.lab_course import ALL_PASS, Course, make_course

PREDICT = """
from grader.student.predict import Question

def _sum():
    from nanovllm.tokenization.sums import add
    return add(20, 22)

def _broken():
    return 1 / 0

QUESTIONS = [
    Question(key="a", text="What is the sum?", unit="apples", tasks=(1,), answer=_sum),
    Question(key="b", text="And this?", unit="KiB", tasks=(1, 2), answer=_broken),
]
"""


ANSWERS = {  # of the reference, as one finds them by hand
    "01": {"a": 6, "d": 1050.67},
    "02": {"a": 128, "b": 290, "c": 24, "e": 5913.25},
    "03": {"a": 296, "b": 853, "c": 12.5, "d": 53.18},
    "05": {"c": 2},
    "06": {"c": 66},
    "07": {"a": 101},
    "08": {"d": 60},
    "11": {"b": 101, "e": 13},
    "12": {"e": 300},
    "13": {"d": 437.5, "e": 50},
}


@pytest.mark.parametrize("number", ANSWERS)
def test_the_reference_answers_what_a_hand_finds(number: str) -> None:
    lab = find_lab(number)
    found = {key: computed(lab, question(lab, key)) for key in ANSWERS[number]}
    assert found == pytest.approx(ANSWERS[number], rel=1e-4)


@pytest.fixture
def course(tmp_path: Path) -> Course:
    made = make_course(tmp_path, started="lab01")
    (tmp_path / "labs" / "lab01" / "predict.py").write_text(PREDICT)
    return made


def test_a_guess_is_kept_and_answered_once_its_tasks_pass(course: Course) -> None:
    assert "lab predict 01 a NUMBER" in course.lab("predict", "1").stdout
    guessed = course.lab("predict", "1", "a", "41.5").stdout
    assert "you guessed 41.5 apples" in guessed and "once task 1 of lab01" in guessed
    assert "KiB" not in guessed
    course.solve("sums.py", "scale.py")
    course.record(**ALL_PASS)
    assert "your code says 42 apples" in course.lab("predict", "1", "a").stdout
    course.lab("predict", "1", "a", "40")
    assert course.records["labs"]["lab01"]["guesses"] == {"a": 40.0}
    done = course.lab("predict", "1", "b", "3")
    assert done.returncode == 2 and "ZeroDivisionError" in done.stderr
    assert "zero.\n" in done.stderr
    path = course.root / "labs" / "lab01" / "predict.py"
    path.write_text(PREDICT.replace("answer=_sum", "answer=_broken", 1) + (
        'QUESTIONS += [Question(key="c", text="At last?", unit="s", tasks=(1,), answer=_sum)]\n'
    ))  # fmt: skip
    assert "At last?" in course.lab("predict", "1").stdout, "a broken answer hides no other"


def test_what_cannot_be_guessed_is_refused(course: Course) -> None:
    assert "no question 'z'; its questions are a, b" in course.refused("predict", "1", "z", "3")
    assert "guess is a number" in course.refused("predict", "1", "a", "many")
    assert "no questions to predict" in course.refused("predict", "2")
    assert not course.records["labs"]["lab01"]["guesses"]


def test_a_notebook_asks_and_answers(course: Course) -> None:
    code = "from grader.student.notebook import answer, predict; print(predict('01', 'a', {}), {})"
    assert "Write your guess (apples)" in course.python(code.format("...", "0"))
    said = course.python(code.format("41", "answer('01', 'a')"))
    assert "you guessed 41 apples" in said and said.rstrip().endswith("41.0 None")
    course.solve("sums.py", "scale.py")
    course.record(**ALL_PASS)
    assert "41.0 42.0" in course.python(code.format("41", "answer('01', 'a')"))
    by_course = course.python(code.format("7", "answer('01', 'a')"), NANOVLLM_CODE="reference")
    assert "7.0 42.0" in by_course
    assert course.records["labs"]["lab01"]["guesses"] == {"a": 41.0}  # a person's, no other


def test_without_a_browser_a_movable_picture_is_small_multiples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import matplotlib.pyplot as plt

    for name in ("JPY_SESSION_NAME", "VSCODE_PID", "VSCODE_CWD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(plt, "show", lambda: None)
    drawn = []
    notebook.movable(lambda axes, t, p: drawn.append((t, p)), t=range(12), p=[0.1, 0.5, 0.9])
    assert drawn == [(t, 0.5) for t in range(0, 12, 2)]


def test_with_one_it_has_a_slider_for_each_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib.pyplot as plt

    monkeypatch.setenv("JPY_SESSION_NAME", "x")
    monkeypatch.delenv("NANOVLLM_CODE", raising=False)
    monkeypatch.delenv("NBGRADER_EXECUTION", raising=False)
    monkeypatch.setattr(plt, "show", lambda: None)
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda *parts: shown.extend(parts))
    notebook.movable(lambda axes, t, p: None, t=range(12), p=[0.1, 0.5, 0.9])
    assert [part.description for part in shown[:-1]] == ["t", "p"]
