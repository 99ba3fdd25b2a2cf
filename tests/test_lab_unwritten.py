"""Files that start empty, in a small course: what the checks, and every command, say of them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from grader.checks.unwritten import absent_symbols
from grader.course.lab_toml import Lab, Task
from grader.course.stubs import StubError, make_stub, solved_symbols
from tests.lab_course import Course, make_course

EMPTY = '"""More."""\n\n# lab02 task 1: this file is yours to write.\n'
RIGHT = "def triple(n):\n    return _times(n, 3)\n\n\ndef _times(n, k):\n    return n * k\n"
SECOND = """
[[task]]
id = 2
title = "Six times"
points = 5
minutes = 5
needs = [1]
symbols = ["six:six"]
"""
SIX = '''"""Six."""

from nanovllm.model.more import triple


def six(n):
    """Six times n."""
    {body}
'''
CHECKS = """
import pytest
from grader import expect
from nanovllm.model.more import Box, triple

@pytest.mark.check(task=1, points=6, title="Triples")
def test_triple():
    expect(triple(4), 12)

@pytest.mark.check(task=1, points=4, title="Boxes")
def test_box():
    expect(Box(2).size(), 2)
"""
CHECK_SIX = """
import pytest
from grader import expect
from nanovllm.model.six import six

@pytest.mark.check(task=2, points=5, title="Six")
def test_six():
    expect(six(2), 12)

@pytest.mark.check(task=2, points=1, title="Six of nothing")
def test_none():
    expect(six(0), 0)
"""


PLACE = "(nanovllm/model/more.py)"


@pytest.fixture
def course(tmp_path: Path) -> Course:
    """The small course, whose more.py starts empty and has two public names."""
    made = make_course(tmp_path)
    folder = tmp_path / "labs" / "lab02"
    toml = (folder / "lab.toml").read_text().replace('"more:triple"', '"more:triple", "more:Box"')
    (folder / "lab.toml").write_text(toml + SECOND)
    (folder / "stubs" / "more.py").write_text(EMPTY)
    error = 'raise NotImplementedError("lab02 task 2: six")'
    (folder / "stubs" / "six.py").write_text(SIX.format(body=error))
    reference = tmp_path / "solutions" / "nanovllm" / "model"
    (reference / "six.py").write_text(SIX.format(body="return 2 * triple(n)"))
    (folder / "test_1_triple.py").write_text(CHECKS)
    (folder / "test_2_six.py").write_text(CHECK_SIX)
    names = [("1_triple", "test_triple", 1, 6), ("1_triple", "test_box", 1, 4)]
    names += [("2_six", "test_six", 2, 5), ("2_six", "test_none", 2, 1)]
    checks = {
        f"labs/lab02/test_{file}.py::{name}": {"task": task, "points": points, "title": name}
        for file, name, task, points in names
    }
    files = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in [*folder.glob("test_*.py"), *folder.glob("stubs/*.py")]
    }
    (folder / "checks.json").write_text(json.dumps({"checks": checks, "files": files}))
    made.lab("start", "2")
    return made


def more(course: Course) -> Path:
    return course.root / "nanovllm" / "model" / "more.py"


def statuses(course: Course) -> dict[str, tuple[str, str]]:
    """Status and reason of each check, after a run of them."""
    course.lab("check", "2")
    results = course.records["labs"]["lab02"]["results"]["isolated"]
    return {
        name.rpartition("::")[2]: (found["status"], found["reason"])
        for name, found in results.items()
    }


def test_an_empty_file_is_to_do_and_its_task_blocks_others(course: Course) -> None:
    found = statuses(course)
    assert found["test_triple"] == ("todo", f"lab02 task 1: triple is not written yet {PLACE}")
    assert found["test_box"] == ("todo", f"lab02 task 1: Box is not written yet {PLACE}")
    assert found["test_six"][0] == "todo"  # its own stub comes first
    done = course.lab("check", "2")
    assert "Traceback" not in done.stdout + done.stderr
    six = course.root / "nanovllm" / "model" / "six.py"
    six.write_text(SIX.format(body="return triple(n) + triple(n)"))
    assert statuses(course)["test_six"] == ("blocked", "blocked by task 1")
    six.write_text(SIX.format(body="return n and triple(n) + triple(n)"))
    assert statuses(course)["test_none"] == ("passed", "")  # it earns, whatever failed before


def test_one_name_of_two_earns_what_it_does(course: Course) -> None:
    more(course).write_text(RIGHT)
    found = statuses(course)
    assert found["test_triple"] == ("passed", "")
    assert found["test_box"] == ("todo", f"lab02 task 1: Box is not written yet {PLACE}")
    assert "not written yet: Box, six." in course.lab("pack", "2").stderr


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("class Box:\n    pass\n", "Box() takes no arguments"),
        (
            "class Box:\n    def __init__(self, n):\n        self.n = n\n",
            "nanovllm/model/more.py: the class Box has no `size`, "
            "which the interface in the handout has",
        ),
    ],
)
def test_a_class_without_the_interface(course: Course, text: str, reason: str) -> None:
    more(course).write_text(f"EXTRA = 1\n{RIGHT}\n\n{text}")
    found = statuses(course)
    assert found["test_triple"][0] == "passed"
    assert found["test_box"][0] == "failed"
    printed = " ".join(course.lab("check", "2", "--task", "1").stdout.replace("│", "").split())
    assert "interface in the handout" in printed
    assert reason == found["test_box"][1] or reason in printed


def test_a_wrong_task_before_is_named_and_points_stay(course: Course) -> None:
    more(course).write_text(RIGHT.replace("3", "4"))
    six = course.root / "nanovllm" / "model" / "six.py"
    six.write_text(SIX.format(body="return 2 * triple(n)"))
    found = statuses(course)
    assert found["test_six"] == ("blocked", "blocked by task 1")
    assert found["test_none"] == ("passed", "")


def test_reset_of_its_task_backs_up_and_puts_the_file_back(course: Course) -> None:
    more(course).write_text(RIGHT)
    asked = course.lab("reset", "2", "--task", "1", answer="y\n")
    assert "the whole of more.py" in asked.stdout
    assert more(course).read_text() == EMPTY
    [kept] = (course.root / ".lab" / "backups").rglob("more.py")
    assert kept.read_text() == RIGHT


def test_diff_shows_the_whole_file(course: Course) -> None:
    solution = "### BEGIN SOLUTION\ndef triple(n):\n    return 3 * n\n### END SOLUTION\n"
    reference = course.root / "solutions" / "nanovllm" / "model" / "more.py"
    reference.write_text(solution)
    box = "\n\nclass Box:\n    def __init__(self, n):\n        self.n = n\n\n"
    more(course).write_text(RIGHT + box + "    def size(self):\n        return self.n\n")
    assert statuses(course)["test_box"][0] == "passed"
    shown = course.lab("diff", "2", "--task", "1").stdout
    assert "_times" in shown and "SOLUTION" not in shown
    assert shown.count("more.py") == 1


def test_the_demo_names_what_is_missing(course: Course) -> None:
    folder = course.root / "labs" / "lab02"
    (folder / "lab.toml").write_text("demo = [1]\n" + (folder / "lab.toml").read_text())
    done = course.lab("demo", "2")
    assert done.returncode == 1
    assert "needs lab02 task 1" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "absent"),
    [
        ("from nanovllm.model.mine import (\n    Pool,\n    more as most,\n)\n", ["more"]),
        ("from nanovllm.model.mine import *\n", []),
        ("class Pool(Base):\n    pass\nmore = 1\n", []),
        ("class Pool:\n    take = _take\nmore = 1\n", []),
        ("class Pool:\n    pass\nmore = 1\n", ["Pool.take"]),
        ("", ["Pool", "Pool.take", "more"]),
    ],
)
def test_what_another_module_or_class_gives_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, absent: list[str]
) -> None:
    monkeypatch.setenv("NANOVLLM_MINE", str(tmp_path))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "a.py").write_text(text)
    task = Task(3, "t", 90, 1, ("a:Pool", "a:Pool.take", "a:more"))
    found = absent_symbols(Lab(2, "x", "model", "a.py", (task,)))
    assert [one.name for one in found] == absent


TASKS = (Task(3, "t", 90, 1, ("a:f", "a:Pool", "a:SIZES")), Task(4, "u", 10, 1, ("a:more",)))
LAB = Lab(2, "x", "model", "a.py", TASKS)


def test_three_kinds_of_regions() -> None:
    source = (
        '"""A."""\n\nfrom __future__ import annotations\n\n### BEGIN SOLUTION\nimport os\n\n'
        "SIZES = [1]\n\n\ndef f():\n    return _g()\n\n\n"
        "def _g():\n    return 1\n### END SOLUTION\n"
    )
    stub = make_stub(source, "a", LAB)
    assert stub.startswith('"""A."""\n\nfrom __future__ import annotations\n\n# lab02 task 3: ')
    assert "def" not in stub and "labs/lab02/README.md" in stub
    assert solved_symbols(source, "a") == {"a:SIZES", "a:f"}
    in_class = (
        'class Pool:\n    """Docs."""\n\n    ### BEGIN SOLUTION\n    def __init__(self, n):\n'
        "        self.n = n\n\n    def get(self):\n        return self.n\n    ### END SOLUTION\n"
    )
    assert make_stub(in_class, "a", LAB) == (
        'class Pool:\n    """Docs."""\n\n    def __init__(self, *args, **kwargs):\n'
        '        raise NotImplementedError("lab02 task 3: Pool")\n'
    )
    assert solved_symbols(in_class, "a") == {"a:Pool"}


def test_a_helper_between_two_functions_leaves_no_gap() -> None:
    cut = "    ### BEGIN SOLUTION\n    return _g()\n    ### END SOLUTION\n"
    helper = "### BEGIN SOLUTION\ndef _g():\n    return 1\n\n\n### END SOLUTION\n"
    source = f'"""A."""\n\n\ndef f():\n{cut}\n\n{helper}\n\ndef given():\n    return 2\n'
    error = 'raise NotImplementedError("lab02 task 3: f")'
    assert make_stub(source, "a", LAB) == (
        f'"""A."""\n\n\ndef f():\n    {error}\n\n\ndef given():\n    return 2\n'
    )


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("### BEGIN SOLUTION\ndef other():\n    pass\n### END SOLUTION\n", "none of other"),
        (
            "class Pool:\n    def __init__(self):\n        pass\n\n    ### BEGIN SOLUTION\n"
            "    def get(self):\n        pass\n    ### END SOLUTION\n",
            "one region",
        ),
        ("def g():\n    ### BEGIN SOLUTION\n    return 1\n    ### END SOLUTION\n", "a:g has"),
    ],
)
def test_regions_that_cannot_be_cut_out(source: str, sentence: str) -> None:
    with pytest.raises(StubError, match=sentence):
        make_stub(source, "a", LAB)
