"""Search a release for what students must not see: solutions, scenarios, mistakes, answers."""

from __future__ import annotations

import ast
import io
import json
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass

from grader.authoring.mistakes import bank
from grader.checks.hints_file import decoded
from grader.course.lab_toml import Lab, labs
from grader.course.paths import HIDDEN, NOTEBOOK_SOURCES
from grader.course.stubs import has_empty_file, lab_stubs, regions, solutions
from grader.release.lab_selection import Selection

WINDOW = 3  # so many lines of a solution in a row are a leak, even where the rest is missing
TELLING = 16  # a line of a solution counts from this length on, where it stands verbatim
MOST = 0.02  # so large a share of a lab's solution lines may, by chance
LONG = 40  # a single line of a planted mistake or of a model answer counts from this length on
# What any code says: an import, a parameter, an argument handed on, the head of a function.
ORDINARY = re.compile(r"(from|import|def|class) |@|\"\"\"|self,$|\w+: .*,$|\w+=[\w.]+,?$|[)\]}]")
# Single lines that every second module has: a loop, a condition, a name handed on or kept, a call
# of what the interface offers with plain arguments.
COMMON = re.compile(
    r"super\(\)\.__init__\(\)|@.*|self\.(\w+) = \1|\w+=[\w.]+,|for \w+ in [\w.]+:?"
    r"|(if|while|elif) (not )?[\w.]+( is (not )?None)?:|except \w+( as \w+)?:"
    r"|(\w+ = )?[\w.]+\([\w., ]*\)|[\w.]+ = [\w.]+\(|raise \w+\("
)
FORBIDDEN = re.compile(
    r"^(solutions/(hidden|hints|mistakes|notebooks)/|grader/(grading|classroom)/)|\.pyc$"
)


@dataclass(frozen=True)
class Secret:
    """Lines that must not stand in the release one after the other, and what they are."""

    what: str
    lines: tuple[str, ...]


def leaks(files: dict[str, bytes], selection: Selection) -> list[str]:
    """One sentence for everything in the release that should not be there."""
    old = {f"labs/{lab.key}/hints.txt" for lab in labs() if not has_empty_file(lab)}
    texts = {
        name: "\n".join(["", *_lines(_text(name, data)), ""])
        for name, data in files.items()
        if name not in old  # their hints are nearly the code still
    }
    found = [f"{name} must not be released" for name in files if FORBIDDEN.search(name)]
    there = {line for text in texts.values() for line in text.split("\n")}
    for secret in secrets(selection):
        if not there.issuperset(secret.lines):  # as nearly always; else look where
            continue
        needle = "\n".join(["", *secret.lines, ""])
        found += [f"{name} holds {secret.what}" for name, text in texts.items() if needle in text]
    return sorted(set(found))


@dataclass(frozen=True)
class Verbatim:
    """A lab's solution lines that count, and where those that a release holds stand in it."""

    total: int
    found: dict[str, list[str]]

    @property
    def share(self) -> float:
        return len(self.found) / max(1, self.total)


def verbatim(files: dict[str, bytes], lab: Lab) -> Verbatim:
    """Every telling line of the lab's solutions that stands in anything of the lab's release.

    That is handout, checks, hints, notebook, demo, predictions, plots and given code. What another
    lab's given code or the tooling says alike gives nothing of this lab away.
    """
    lines = {line for _, body in solutions(lab) for line in telling(body)}
    own = (f"labs/{lab.key}/", f"notebooks/{lab.key}/")
    texts = {
        name: squashed(_text(name, data)) for name, data in files.items() if name.startswith(own)
    }
    found = {}
    for line in sorted(lines):
        places = [name for name, text in texts.items() if squashed(line) in text]
        if places:
            found[line] = places
    return Verbatim(len(lines), found)


def telling(body: str) -> Iterator[str]:
    """Lines of a solution that say something of it: not imports, signatures or docstrings."""
    silent: set[int] = set()
    deep = (len(body) - len(body.lstrip(" "))) // 4  # helpers may follow, less deep than its start
    heads = "".join(f"{'    ' * level}if True:\n" for level in range(deep))
    for node in ast.walk(ast.parse(heads + body)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            silent.update(range(node.lineno, (node.end_lineno or 0) + 1))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = node.body[0]
            silent.update(range(node.lineno, max(node.lineno + 1, first.lineno)))
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                silent.update(range(first.lineno, (first.end_lineno or 0) + 1))
    for number, line in enumerate(body.splitlines(), start=deep + 1):
        line = line.strip()
        if number not in silent and len(line) >= TELLING and not COMMON.fullmatch(line):
            yield from _lines(line)


def squashed(text: str) -> str:
    """Without spaces, quotes and backslashes, so that no other way to write it hides a line."""
    return re.sub(r"[\s\"'`\\]", "", text)


def secrets(selection: Selection) -> Iterator[Secret]:
    """All that is looked for."""
    given = {line for lab in labs() for text in lab_stubs(lab).values() for line in _lines(text)}
    for lab in selection.open:
        for place, body in solutions(lab):
            lines = tuple(_lines(body))
            yield Secret(f"the solution {place}", lines)
            for start in range(len(lines) - WINDOW + 1):
                part = lines[start : start + WINDOW]
                if not given.issuperset(part) and _tells(part):
                    yield Secret(f"lines of the solution {place}", part)
        for mistake in bank(lab):
            lines = tuple(_lines(mistake.new))
            told = len(lines) > 1 or len(mistake.new.strip()) >= LONG
            if told and not given.issuperset(lines):
                yield Secret(f"the code of the mistake {mistake.name}", lines)
    for lab in labs():
        for path in sorted((HIDDEN / lab.key).glob("*.py")):
            source = path.read_text(encoding="utf-8")
            for node in ast.parse(source).body:
                if isinstance(node, ast.FunctionDef):
                    body = "\n".join(source.splitlines()[node.lineno : node.end_lineno])
                    yield Secret(f"the hidden scenario {node.name}", tuple(_lines(body)))
        source = NOTEBOOK_SOURCES / lab.key / f"{lab.key}.ipynb"
        cells = json.loads(source.read_text(encoding="utf-8"))["cells"] if source.is_file() else []
        for cell in cells:
            if cell["metadata"].get("nbgrader", {}).get("solution"):
                yield from _model_answers(lab, cell["cell_type"], "".join(cell["source"]), given)


def _tells(lines: tuple[str, ...]) -> bool:
    """Whether these lines are anybody's own, and not what every module says."""
    return sum(not ORDINARY.match(line) for line in lines) > 1


def _model_answers(lab: Lab, kind: str, source: str, given: set[str]) -> Iterator[Secret]:
    """Each long line of an answer in words; of an experiment's code, what a student writes."""
    what = f"a model answer of {lab.key}'s notebook"
    if kind == "markdown":
        yield from (Secret(what, (line,)) for line in _lines(source) if len(line) >= LONG)
        return
    for region in regions(source):
        lines = _lines(region.body)
        for start in range(len(lines) - WINDOW + 1):
            part = tuple(lines[start : start + WINDOW])
            if not given.issuperset(part) and _tells(part):
                yield Secret(what, part)


def _lines(text: str) -> list[str]:
    """The lines that say something: no indentation, no blank lines, no comments."""
    stripped = (line.strip() for line in text.splitlines())
    return [line for line in stripped if line and not line.startswith("#")]


def _text(name: str, data: bytes) -> str:
    """A file as the lines a reader sees."""
    if name.endswith((".safetensors", ".png")):
        return ""
    if name.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            return "\n".join(packed.read(part).decode() for part in packed.namelist())
    text = data.decode("utf-8", "replace")
    if name.endswith(".ipynb"):
        return "\n".join("".join(cell["source"]) + "\n" for cell in json.loads(text)["cells"])
    if name.endswith("hints.txt"):
        return "\n".join(text for hints in decoded(text).values() for text in hints)
    if name.endswith("checks.json"):
        return ""
    return text
