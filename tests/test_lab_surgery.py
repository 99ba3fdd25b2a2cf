"""Single definitions found and replaced inside a file, everything else untouched."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grader.student.definitions import SurgeryError, replaced, source_of

STUB = '''import math


@staticmethod
def f(x):
    """Doc."""
    raise NotImplementedError


class C:
    def g(self):
        raise NotImplementedError
'''


def test_decorators_belong_to_the_definition() -> None:
    assert source_of(STUB, "f").startswith("@staticmethod\n")
    assert replaced("@cache\n@other\ndef f(x): return 1\ny = 2\n", "f", STUB).endswith(
        "raise NotImplementedError\ny = 2\n"
    )


def test_of_two_definitions_the_last_is_replaced() -> None:
    text = "def f(x):\n    return 1\n\ndef f(x):\n    return 2\n"
    after = replaced(text, "f", STUB)
    assert "return 1" in after
    assert "return 2" not in after


def test_a_method_is_not_a_function_of_the_same_name() -> None:
    text = "def g():\n    return 1\n\nclass C:\n    def g(self):\n        return 2\n"
    after = replaced(text, "C.g", STUB)
    assert "return 1" in after
    assert "return 2" not in after


def test_a_form_feed_and_line_separators_in_strings_do_not_shift_lines() -> None:
    text = 's = "a\u2028b\x0cc\x1c"\n\x0c\ndef f(x):\n    return 1\n\nt = "\x85"\n'
    after = replaced(text, "f", STUB)
    assert after.startswith(text[: text.index("def")])
    assert after.endswith('\n\nt = "\x85"\n')
    ast.parse(after)


def test_a_file_without_a_last_newline_still_takes_a_new_definition() -> None:
    after = replaced("x = 1", "f", STUB)
    assert after.startswith("x = 1\n")
    assert "def f(x):" in after


def test_comments_at_the_end_of_a_body_belong_to_it() -> None:
    text = "def f(x):\n    return 1\n\n    # left over\n\n# mine\nx = 1\n"
    assert source_of(text, "f").endswith("# left over\n")
    assert replaced(text, "f", STUB).endswith("raise NotImplementedError\n\n# mine\nx = 1\n")


def test_a_definition_under_if_is_found() -> None:
    text = "if True:\n    def f(x):\n        return 1\nelse:\n    x = 2\n"
    assert source_of(text, "f") == "    def f(x):\n        return 1\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def f(:", "line 1 is not valid Python"),
        ("x = 1\n", "class C is not in it"),
        ("class C:\n  def h(self): pass\n", "indented otherwise"),
    ],
)
def test_what_cannot_be_replaced_is_said(text: str, says: str) -> None:
    with pytest.raises(SurgeryError, match=says):
        replaced(text, "C.g", STUB)


REMARKS = st.lists(
    st.text(st.characters(blacklist_characters="\r\n\0", blacklist_categories=["Cs"]), max_size=20),
    max_size=4,
)


@settings(derandomize=True, database=None, deadline=None, max_examples=100)
@given(before=REMARKS, after=REMARKS, ending=st.sampled_from(["\n", "\r\n"]))
def test_what_stands_around_stays(before: list[str], after: list[str], ending: str) -> None:
    head = "".join(f"# {line}{ending}" for line in before)
    tail = "".join(f"# {line}{ending}" for line in after)
    text = f"{head}def f(x):{ending}    return 1{ending}{tail}"
    result = replaced(text, "f", STUB)
    assert result.startswith(head)
    assert result.endswith(tail)
    assert "return 1" not in result[len(head) : len(result) - len(tail)]
