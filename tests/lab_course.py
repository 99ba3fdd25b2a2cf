"""A small course in a folder of its own, for the tests of the command `lab`."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

from tests.processes import Done, run_copy

REPOSITORY = Path(__file__).resolve().parent.parent

LAB01 = """
number = 1
title = "Adding up"
package = "tokenization"
first = "sums.py"
[[task]]
id = 1
title = "Add"
points = 10
minutes = 10
symbols = ["sums:add"]
[[task]]
id = 2
title = "Counter"
points = 20
minutes = 30
needs = [1]
symbols = ["sums:Counter.push", "scale:double"]
"""
LAB02 = """
number = 2
title = "Adding more"
package = "model"
first = "more.py"
[[task]]
id = 1
title = "Triple"
points = 10
minutes = 20
symbols = ["more:triple"]
"""
SUMS = '''"""Sums."""

STEP = 1


def add(a: int, b: int) -> int:
    """The sum."""
    ### BEGIN SOLUTION
    return a + b
    ### END SOLUTION


class Counter:
    """Counts."""

    def __init__(self) -> None:
        self.total = 0

    def push(self, n: int) -> int:
        """Add n."""
        ### BEGIN SOLUTION
        self.total = add(self.total, n)
        return self.total
        ### END SOLUTION
'''
SCALE = '''"""Scale."""


def double(n: int) -> int:
    """Twice n."""
    ### BEGIN SOLUTION
    return 2 * n
    ### END SOLUTION
'''
MORE = '''"""More."""

from nanovllm.tokenization.sums import add


def triple(n: int) -> int:
    """Three times n."""
    ### BEGIN SOLUTION
    return add(n, add(n, n))
    ### END SOLUTION
'''
CHECK = """
@pytest.mark.check(task={task}, points={points}, title="{title}")
def {name}():
    expect({call}, {value}, call="{call}", given={{}}, cause="{title}")
"""
TASK_OF = {"add": (1, 1), "push": (1, 2), "double": (1, 2), "triple": (2, 1)}
CHECKS = {
    ("lab01", "test_1_add.py"): (
        "from nanovllm.tokenization.sums import add",
        [
            ("test_add", 1, 6, "Sum of two", "add(2, 3)", 5),
            ("test_negative", 1, 4, "Negative [numbers]", "add(2, -3)", -1),
        ],
    ),
    ("lab01", "test_2_counter.py"): (
        "from nanovllm.tokenization.scale import double\n"
        "from nanovllm.tokenization.sums import Counter",
        [
            ("test_push", 2, 12, "Counts", "Counter().push(4)", 4),
            ("test_double", 2, 8, "Doubles", "double(4)", 8),
        ],
    ),
    ("lab02", "test_1_triple.py"): (
        "from nanovllm.model.more import triple",
        [("test_triple", 1, 10, "Triples", "triple(4)", 12)],
    ),
}
DEMO = """
def main() -> None:
    from nanovllm.tokenization.sums import add
    print("demo:", add(20, 22))
"""


@dataclass(frozen=True)
class Course:
    """A course's folder, and the command `lab` in it."""

    root: Path

    @property
    def mine(self) -> Path:
        return self.root / "nanovllm" / "tokenization"

    @property
    def state_file(self) -> Path:
        return self.root / ".lab" / "state.json"

    @property
    def records(self) -> dict:
        return json.loads(self.state_file.read_text())

    @property
    def environment(self) -> dict[str, str]:
        unwanted = ("NANOVLLM_CODE", "NANOVLLM_MINE", "NANOVLLM_STATE", "PYTEST_ADDOPTS")
        kept = {
            name: text
            for name, text in os.environ.items()
            if name not in unwanted and not name.startswith(("COV_", "NBGRADER_", "PYTEST_"))
        }
        return kept | {
            "PYTHONPATH": str(self.root),
            "COLUMNS": "100",
            "TERM": "xterm",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def lab(
        self,
        *words: str,
        answer: str = "",
        cwd: Path | None = None,
        apart: bool = False,
        **extra: str,
    ) -> Done:
        """Run `lab` with these words in a fork, or `apart`, in a new interpreter.

        `extra` are environment variables.
        """
        words = ("-m", "grader.student.lab_command", *words)
        return self._run(words, answer, cwd or self.root, apart, extra)

    def _run(
        self, words: tuple[str, ...], answer: str, cwd: Path, apart: bool, extra: dict[str, str]
    ) -> Done:
        env = self.environment | extra
        if not apart:
            return run_copy(self.root, *words, cwd=cwd, env=env, stdin=answer)
        done = subprocess.run(
            [sys.executable, *words],
            cwd=cwd, input=answer, capture_output=True, text=True, env=env, timeout=600,
        )  # fmt: skip
        return Done(done.returncode, done.stdout, done.stderr)

    def refused(self, *words: str, **extra: str) -> str:
        """The sentence with which `lab` refuses: exit code 2, one line, no traceback."""
        done = self.lab(*words, **extra)
        assert done.returncode == 2, done
        assert "Traceback" not in done.stderr + done.stdout
        assert done.stdout == "", done.stdout
        sentence = done.stderr.strip()
        assert len(sentence.splitlines()) == 1, sentence
        return sentence

    def python(self, code: str, apart: bool = True, **extra: str) -> str:
        """Run some Python with the course's own grader and return what it prints."""
        done = self._run(("-c", code), "", self.root, apart, extra)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def record(self, mode: str = "isolated", key: str = "lab01", **statuses: str) -> None:
        """Record outcomes of a lab's checks on the files as they are, without running them."""
        code = f"""
from grader.course import integrity
from grader.student_files import lab_state
from grader.course.lab_toml import find_lab
from grader.course.outcome import Outcome, Status
lab, statuses = find_lab({key!r}), {statuses!r}
outcomes = [Outcome(c.id, lab.key, c.task, c.title, c.points, Status(statuses[c.name]))
            for c in integrity.read(lab).checks.values() if c.name in statuses]
assert len(outcomes) == len(statuses)
print(lab_state.record_run(lab.key, {mode!r}, outcomes, lab_state.digest(lab)))
"""
        self.python(code, apart=False)

    def solve(self, *names: str) -> None:
        """Write the student's files as one who has solved the lab would."""
        for name in names:
            package = "model" if name == "more.py" else "tokenization"
            solution = self.root / "solutions" / "nanovllm" / package / name
            kept = [line for line in solution.read_text().splitlines() if "### " not in line]
            (self.root / "nanovllm" / package / name).write_text("\n".join(kept) + "\n")


def make_course(root: Path, started: str = "") -> Course:
    """Write the small course with the repository's own grader in it, some labs started."""
    shutil.copytree(REPOSITORY / "grader", root / "grader")
    (root / "nanovllm").mkdir()
    for name in ("nanovllm/__init__.py", "pyproject.toml", "requirements.txt"):
        shutil.copy(REPOSITORY / name, root / name)
    sources = {"tokenization": {"sums.py": SUMS, "scale.py": SCALE}, "model": {"more.py": MORE}}
    for (package, files), toml, key in zip(
        sources.items(), (LAB01, LAB02), ("lab01", "lab02"), strict=True
    ):
        for name, text in {"__init__.py": '"""Given."""\n', **files}.items():
            _write(root / "solutions" / "nanovllm" / package / name, text)
            _write(root / "labs" / key / "stubs" / name, _stub(text))
        _write(root / "labs" / key / "lab.toml", toml)
        _write(root / "labs" / key / "demo.py", DEMO)
        _write(root / "labs" / key / "README.md", "# Handout\n")
        _write(root / "labs" / key / "checks.json", json.dumps(_checks(root, key), indent=1))
    _write(root / "solutions" / "nanovllm" / "__init__.py", "")
    course = Course(root)
    if started:
        course.python(
            "from grader.course.lab_toml import find_lab\n"
            "from grader.student_files import lab_folder\n"
            f"for name in {started.split()!r}:\n"
            "    lab_folder.start(find_lab(name))",
            apart=False,
        )
    return course


ALL_PASS = {
    "test_add": "passed",
    "test_negative": "passed",
    "test_push": "passed",
    "test_double": "passed",
}


def _checks(root: Path, key: str) -> dict:
    """Write a lab's check files and return what the builder would record of the lab."""
    checks = {}
    for (lab, file), (imports, entries) in CHECKS.items():
        if lab != key:
            continue
        text = f"import pytest\nfrom grader import expect\n{imports}\n"
        for name, task, points, title, call, value in entries:
            text += CHECK.format(
                task=task, points=points, title=title, name=name, call=call, value=value
            )
            checks[f"labs/{lab}/{file}::{name}"] = {
                "task": task,
                "points": points,
                "title": title,
            }
        _write(root / "labs" / lab / file, text)
    hints = {f"{id.rpartition('/')[2]}": ["weak", "stronger", "code"] for id in checks}
    packed = base64.b64encode(zlib.compress(json.dumps(hints).encode())).decode()
    _write(root / "labs" / key / "hints.txt", f"# encoded\n{packed}\n")
    folder = root / "labs" / key
    paths = [*sorted(folder.glob("test_*.py")), *sorted(folder.glob("stubs/*.py"))]
    files = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
    }
    return {"checks": checks, "files": files}


def _stub(text: str) -> str:
    """What the builder makes of a source: bodies between markers become errors."""
    lines, inside, name = [], False, ""
    for line in text.splitlines():
        found = re.match(r"\s*def (\w+)", line)
        name = found[1] if found else name
        if "### BEGIN SOLUTION" in line:
            lab, task = TASK_OF[name]
            indent = line[: len(line) - len(line.lstrip())]
            lines.append(f'{indent}raise NotImplementedError("lab{lab:02d} task {task}: {name}")')
            inside = True
        elif "### END SOLUTION" in line:
            inside = False
        elif not inside:
            lines.append(line)
    return "\n".join(lines) + "\n"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
