"""The card that a failed check prints: what was called, what differed, the likely cause."""

from __future__ import annotations

import re
import textwrap
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grader.checks.compare import SHOWN, describe
from grader.checks.expect import ExpectationFailed
from grader.checks.known_mistakes import KnownMistake
from grader.checks.unwritten import is_students, lacking
from grader.course import checks_json
from grader.course.lab_toml import find_lab
from grader.course.paths import LABS, ROOT

# What Triton's interpreter says in its own words: a part of its message, and what is meant.
MEANT = {
    "get_bf16": "the interpreter has no arithmetic on bfloat16: convert with .to(tl.float32) first",
    "grid_idx": "a kernel was called without a grid: launch(kernel, grid, ...)",
    "'int' object is not iterable": "a tensor is a pointer in a kernel, without x[...]: "
    "use tl.load(x + places)",
}
# Of a short text the whole, not from which letter on it differs; nor a length that is right.
WORD = re.compile(r"^(at \S+: )?from position (?:\d|1[0-2]): (got '.{0,24}', expected '.{0,24}')$")
SAME_LENGTH = re.compile(r"length: got (\d+), expected \1")
INSIDE = re.compile(r"at (\[[^]]*\]|\.\w+)[.\[]")
WIDTH = 96
LABEL = 9


class DoesNotEnd(BaseException):
    """No Exception: no `except` of the student's catches it, and hypothesis does not repeat it."""


@dataclass(frozen=True)
class CheckInfo:
    """What a card needs to know of its check."""

    id: str
    lab: str
    task: int
    title: str
    points: int
    seed: int

    @property
    def name(self) -> str:
        return self.id.rpartition("::")[2]

    @property
    def hint_command(self) -> str:
        """With the file's name where two checks of the lab have one name."""
        known = checks_json.read(find_lab(self.lab)).checks.values()
        alone = sum(check.name == self.name for check in known) < 2
        word = self.name if alone else self.id.rpartition("/")[2]
        return f"lab hint {self.lab.removeprefix('lab')} {word}"

    @property
    def replay_command(self) -> str:
        seed = f" --seed {self.seed}" if self.seed else ""
        return f"pytest {self.id}{seed}"


@dataclass(frozen=True)
class LateCard:
    """A card that names a mistake as a fact only if all of the run agrees when it is read."""

    fact: str
    perhaps: str
    agrees: Callable[[], bool]

    def __str__(self) -> str:
        return self.fact if self.agrees() else self.perhaps

    def toterminal(self, writer: Any) -> None:
        """What pytest calls when it prints its report."""
        writer.line(str(self))


def failure_card(
    info: CheckInfo, error: BaseException, known: Sequence[KnownMistake], fact: bool = False
) -> str:
    """The whole card of a failed check, as plain text."""
    if isinstance(error, ExpectationFailed):
        rows = list(_expectation_rows(error))
    else:
        rows = list(_exception_rows(error))
    if known:
        rows.append(("mistake" if fact else "perhaps", " / ".join(item.says for item in known)))
    elif isinstance(error, ExpectationFailed) and error.cause:
        rows.append(("likely", error.cause))
    if info.seed:
        rows.append(("seed", str(info.seed)))
    rows += [("hint", info.hint_command), ("replay", info.replay_command)]
    head = f"{info.lab} task {info.task} · {info.title} · {info.points} points"
    return _frame(head, rows)


def load_failure_card(lab: str, error: BaseException) -> str:
    """The card of a check file that could not be loaded, usually a slip of the student."""
    rows = list(_exception_rows(error))
    rows.append(("so", "no check of this file could run; mend this first"))
    return _frame(f"{lab} · the code cannot be loaded", rows)


def student_place(error: BaseException) -> tuple[Path, int] | None:
    """File and line of the innermost frame that is not the course's own tooling or a library."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if is_students(path):
            return path, frame.lineno or 0
    return None


def shown_path(path: Path) -> str:
    """The path relative to the course's folder where it lies in it."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def _expectation_rows(error: ExpectationFailed) -> Iterable[tuple[str, str]]:
    if error.call:
        yield "called", error.call
    for name, value in error.given.items():
        if isinstance(value, str) and "\n" in value:  # a drawing: lines that must stay lines
            yield "drawn", value
        else:
            yield "given", f"{name}: {describe(value)}"
    lines = [WORD.sub(r"\1\2", line) for line in error.found.lines]
    whole = lines != [*error.found.lines]
    for line in lines:
        if not (whole and line.startswith("length: ")) and not SAME_LENGTH.fullmatch(line):
            yield "differs", line
    # Where all that differs is shown, or the items are lists themselves, a share says nothing.
    if error.found.total > SHOWN and not any(map(INSIDE.match, lines)):
        share = 100 * error.found.wrong / error.found.total
        yield "wrong", f"{error.found.wrong} of {error.found.total} ({share:.0f} %)"


def _exception_rows(error: BaseException) -> Iterable[tuple[str, str]]:
    if isinstance(error, SyntaxError) and error.filename:
        yield "raised", f"{type(error).__name__}: {error.msg}"
        yield "at", f"{shown_path(Path(error.filename))}:{error.lineno}"
        if error.text:
            yield "line", error.text.strip()
        return
    if isinstance(error, DoesNotEnd):
        yield "stopped", str(error)
    else:
        yield "raised", f"{type(error).__name__}: {error}"
    if any("triton" in Path(f.filename).parts for f in traceback.extract_tb(error.__traceback__)):
        yield from (("meaning", text) for part, text in MEANT.items() if part in str(error))
    for frame in traceback.extract_tb(error.__traceback__):
        path = Path(frame.filename)
        ours = is_students(path) or path.is_relative_to(LABS)
        if ours and path.is_file():
            yield "at", f"{shown_path(path)}:{frame.lineno} in {frame.name}: {frame.line}"
    if lacking(error):
        yield "meaning", lacking(error)


def _frame(head: str, rows: Iterable[tuple[str, str]]) -> str:
    lines = [f"╭─ {head}"]
    previous = ""
    for label, text in rows:
        shown = "" if label == previous else label
        previous = label
        keep = label in ("hint", "replay")
        wrapped = [text] if keep else textwrap.wrap(text, WIDTH - LABEL - 4) or [""]
        if label == "drawn":
            wrapped = text.split("\n")
        lines += [f"│ {shown if i == 0 else '':<{LABEL}} {part}" for i, part in enumerate(wrapped)]
    return "\n".join([*lines, "╰─"])
