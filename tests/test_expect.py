"""The comparing helper: what it accepts, what it refuses, what its cards say."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from grader import expect
from grader.checks.card import CheckInfo, DoesNotEnd, failure_card
from grader.checks.compare import difference
from grader.checks.expect import ExpectationFailed
from grader.checks.fingerprint import fingerprint, matches
from grader.checks.known_mistakes import KnownMistake, telling
from tests.lab_course import make_course


class AlwaysEqual:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None


@dataclasses.dataclass
class Pair:
    left: int
    right: list[float]


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0 + 1e-6])),
        (np.arange(3), torch.arange(3)),
        ([1, (2, "a")], [1, (2, "a")]),
        ({"a": 1.0}, {"a": 1.0 + 1e-9}),
        (Pair(1, [0.5]), Pair(1, [0.5])),
        (float("nan"), float("nan")),
        (torch.tensor(3), 3),
        (None, None),
        (torch.tensor([float("-inf"), 1.0]), torch.tensor([float("-inf"), 1.0])),
    ],
)
def test_equal_values_pass(actual: object, expected: object) -> None:
    assert difference(actual, expected) is None


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.1])),
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.long)),
        (torch.ones(2, dtype=torch.long), torch.ones(2, dtype=torch.bool)),
        (torch.ones(2, dtype=torch.bool), torch.ones(2, dtype=torch.long)),
        (torch.tensor([float("nan")]), torch.tensor([0.0])),
        ([1, 2], [1, 2, 3]),
        ({"a": 1}, {"a": 1, "b": 2}),
        (True, 1),
        (1, True),
        ("1", 1),
        (1.5, 1),
        (AlwaysEqual(), 1),
        (AlwaysEqual(), "text"),
        (AlwaysEqual(), None),
        (AlwaysEqual(), [1]),
        (AlwaysEqual(), torch.zeros(2)),
        (AlwaysEqual(), Pair(1, [])),
        (b"a", "a"),
        (None, 0),
    ],
)
def test_different_values_fail(actual: object, expected: object) -> None:
    assert difference(actual, expected) is not None


def test_card_shows_three_positions_never_the_whole() -> None:
    have, want = torch.zeros(1000), torch.ones(1000)
    with pytest.raises(ExpectationFailed) as caught:
        expect(have, want, call="f(x)", given={"x": have}, cause="you return zeros")
    info = CheckInfo("labs/lab01/test_1_x.py::test_y", "lab01", 1, "Title", 5, 3)
    card = failure_card(info, caught.value, [])
    assert card.count("got 0, expected 1") == 3
    assert "1000 of 1000 (100 %)" in card
    for part in ("f(x)", "float32 [1000]", "you return zeros", "lab hint 01 test_y", "--seed 3"):
        assert part in card
    assert len(card) < 1500


@pytest.mark.parametrize(
    ("have", "want", "shown", "hidden"),
    [
        ("torch.float16", "torch.float32", "got 'torch.float16', expected 'torch.float32'", "from"),
        ("abcdefgh", "abcdeXgh", "differs   got 'abcdefgh', expected 'abcdeXgh'", "length"),
        (["float16"], ["float32"], "at [0]: got 'float16', expected 'float32'", "from"),
        ("a" * 40, "a" * 38 + "bb", "from position 38:", "length: got 40"),
        ("abc", "abcd", "got 'abc', expected 'abcd'", "length"),
        ("a" * 40, "a" * 41, "length: got 40, expected 41", "likely"),
        ([np.zeros(4), np.zeros(4)], [np.zeros(4), np.ones(4)], "at [1][0]: got 0", "wrong"),
        ([np.zeros(2)] * 9, [np.zeros(2)] * 8 + [np.ones(2)], "at [8][0]: got 0", "wrong"),
        ([1, 2], [1, 3], "at [1]: got 2, expected 3", "wrong"),
        (list(range(9)), [*range(8), 9], "wrong     1 of 9 (11 %)", "likely"),
    ],
)
def test_a_card_says_what_differs_and_no_more(
    have: object, want: object, shown: str, hidden: str
) -> None:
    with pytest.raises(ExpectationFailed) as caught:
        expect(have, want)
    info = CheckInfo("labs/lab01/test_1_x.py::test_y", "lab01", 1, "Title", 5, 0)
    card = failure_card(info, caught.value, [])
    assert shown in card
    assert hidden not in card


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float64])
def test_numbers_that_differ_look_different(dtype: torch.dtype) -> None:
    values = torch.tensor([[-2023406815, 5], [-2023406830, 5]], dtype=dtype)
    found = difference(values[1], values[0])
    assert found is not None and len(found.lines) == 1
    got, due = found.lines[0].removeprefix("at [0]: got ").split(", expected ")
    assert (float(got), float(due)) == (-2023406830, -2023406815)


def test_named_mistake_replaces_the_general_cause() -> None:
    with pytest.raises(ExpectationFailed) as caught:
        expect(1, 2, cause="general")
    info = CheckInfo("labs/lab01/test_1_x.py::test_y", "lab01", 1, "Title", 5, 0)
    known = [KnownMistake("a", "You did this.", sure=True)]
    for fact, word in ((True, "mistake"), (False, "perhaps")):
        card = failure_card(info, caught.value, known, fact)
        assert f"{word}   You did this." in card
        assert "general" not in card


@pytest.mark.parametrize(
    ("second", "says"),
    [
        ("double(4)", "mistake   You double twice."),  # its other check sees what it saw then
        ("double(4) + 1", "perhaps   You double twice."),  # it sees something else
        ("8", "perhaps   You double twice."),  # it passes
    ],
)
def test_a_mistake_is_a_fact_if_the_whole_task_bears_it_out(
    tmp_path: Path, second: str, says: str
) -> None:
    course = make_course(tmp_path, started="1")
    course.solve("sums.py")
    (course.mine / "scale.py").write_text("def double(n):\n    return [4 * n, 0]\n")
    checks = tmp_path / "labs" / "lab01" / "test_2_counter.py"
    text = checks.read_text().replace("expect(double(4), 8", "expect(double(4), [8, 0]")
    more = """
@pytest.mark.check(task=2, points=0, title="Twice")
def test_twice():
    expect({}, [8, 0])
"""
    checks.write_text(text + more.format("double(4)"))
    record = tmp_path / "record.json"
    pytest_run = f"import pytest; pytest.main(['labs/lab01', '--record', {str(record)!r}])"
    course.python(pytest_run, apart=False)
    seen = json.loads(record.read_text())["observations"]
    entries = {
        check: [{"name": "twice", "says": "You double twice.", **observation}]
        for check, observation in seen.items()
    }
    assert len(entries) == 2
    table = tmp_path / "labs" / "lab01" / "mistakes.json"
    table.write_text(json.dumps({"made_from": {}, "observations": entries}))
    checks.write_text(text + more.format(second).replace("expect(8,", "expect([8, 0],"))
    assert says in course.python(pytest_run, apart=False)


def test_what_fits_others_too_is_no_fact() -> None:
    shows = [[1, 2], torch.ones(3), "text", {"a": 1}]
    fits_others = [1, True, None, 0.5, [], "", ValueError("x"), TimeoutError()]
    assert all(telling(fingerprint(value)) for value in shows)
    assert not any(telling(fingerprint(value)) for value in fits_others)


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (ValueError("/tmp/a-1/model/config.json has no 'x'"),
         ValueError("/var/b/c/model/config.json has no 'x'"), True),
        (ValueError("C:\\Users\\ada\\m.json is missing"),
         ValueError("/home/ada/m.json is missing"), True),
        (ValueError("<Row at 0x7f01>"), ValueError("<Row at 0x10ab>"), True),
        (ValueError("in step (engine.py:12)"), ValueError("in step (engine.py:907)"), True),
        (DoesNotEnd("it still runs; step (engine.py:12)"), DoesNotEnd("it sleeps; add"), True),
        (ValueError("3 tokens/s of 4"), ValueError("3 tokens/s of 5"), False),
        (ValueError("/tmp/config.json"), ValueError("/tmp/tokenizer.json"), False),
        (ValueError("x"), KeyError("x"), False),
    ],
)  # fmt: skip
def test_an_error_is_recognised_on_another_machine(
    one: BaseException, other: BaseException, alike: bool
) -> None:
    assert matches(fingerprint(one), fingerprint(other)) is alike


def test_raises_wants_the_error_and_its_message() -> None:
    error = expect.raises(ValueError, lambda: int("x"), match="invalid literal")
    assert isinstance(error, ValueError)
    with pytest.raises(ExpectationFailed, match="returned 3"):
        expect.raises(ValueError, lambda: 3)
    with pytest.raises(ExpectationFailed, match="expected a message"):
        expect.raises(ValueError, lambda: int("x"), match="other words")
    with pytest.raises(ExpectationFailed, match="got TypeError"):
        expect.raises(ValueError, lambda: int(None))
    with pytest.raises(NotImplementedError):
        expect.raises(Exception, _unwritten)


def _unwritten() -> None:
    raise NotImplementedError("lab01 task 1: f")


def test_fingerprints_survive_float_noise_and_tell_values_apart() -> None:
    value = torch.linspace(0, 1, 100)
    assert matches(fingerprint(value), fingerprint(value * (1 + 1e-5)))
    assert not matches(fingerprint(value), fingerprint(value * 1.1))
    assert not matches(fingerprint(value), fingerprint(value.reshape(10, 10)))
    assert matches(fingerprint([1.0, 2]), fingerprint([1.0000001, 2]))
    assert not matches(fingerprint("a"), fingerprint("b"))
    assert matches(fingerprint({"b": 1, "a": "x"}), fingerprint({"a": "x", "b": 1}))
    assert not matches(fingerprint(KeyError("a")), fingerprint(ValueError("a")))
