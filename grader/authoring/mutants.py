"""Mutants: small changes to what a student writes, to see which of them no check notices.

The changes are cosmic-ray's (operators, numbers, conditions, loops), one a mutant, spread evenly
over the lines that a solution adds to the stubs. Those that change nothing are written down with a
reason in `solutions/mutants/labNN.toml`, judged once.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import random
import resource
import shutil
import signal
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from grader.authoring import variants
from grader.checks import observation_json, scenarios
from grader.checks.run_checks import Run, fresh_processes, run_checks
from grader.course.lab_toml import Lab
from grader.course.outcome import Status
from grader.course.paths import MUTANTS
from grader.course.stubs import BEGIN, lab_stubs

MEMORY = 8 << 30  # bytes that a mutant may have; more than any lab needs
PATIENCE = 300  # seconds of a mutant's own; an endless loop is noticed, too
LEFT_OUT = (  # they take arguments, or crash at once wherever numbers are no whole ones
    "VariableReplacer", "VariableInserter", "RemoveDecorator", "ExceptionReplacer", "Shift", "Bit",
    "Invert",
)  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One changed line of one file; `source` is the whole file."""

    file: str
    line: int
    before: str
    after: str
    source: str

    @property
    def key(self) -> str:
        """What it is called in the list of those that change nothing."""
        return f"{self.file}: {self.before} -> {self.after}"


@dataclass(frozen=True)
class Verdict:
    """Who noticed a mutant: "checks", "scenarios", or nobody (""); or it is known to be equal."""

    mutant: Mutant
    noticed: str
    reason: str = ""


def mutants(lab: Lab, solved: Path, most: int, seed: int) -> list[Mutant]:
    """Up to `most` mutants of a solved folder, evenly over the places that can be changed."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator, operator_names

    operators = [
        get_operator(name)
        for name in operator_names()
        if not any(word in name for word in LEFT_OUT)
    ]
    stubs, rng = lab_stubs(lab), random.Random(seed)
    places: dict[tuple[str, tuple[int, int]], list[tuple[type, int]]] = defaultdict(list)
    sources: dict[str, str] = {}
    for path in sorted(solved.glob("*.py")):
        source = sources[path.name] = path.read_text(encoding="utf-8")
        theirs, nodes = (
            own_lines(stubs.get(path.name, ""), source),
            list(ast_nodes(get_ast(source))),
        )
        for operator in operators:
            count = 0
            for node in nodes:
                for start, _ in operator().mutation_positions(node):
                    if start[0] in theirs:
                        places[path.name, start].append((operator, count))
                    count += 1
    made: list[Mutant] = []
    chosen = sorted(places)
    rng.shuffle(chosen)
    for name, start in chosen:
        if len(made) == most:
            break
        operator, occurrence = rng.choice(places[name, start])
        source = mutate_code(sources[name], operator(), occurrence)
        with contextlib.suppress(SyntaxError):
            if ast.dump(ast.parse(source)) != ast.dump(ast.parse(sources[name])):
                old, new = sources[name].splitlines(), source.splitlines()
                at = next(
                    n for n, pair in enumerate(zip(old, new, strict=False)) if len({*pair}) > 1
                )
                made.append(Mutant(name, at + 1, old[at].strip(), new[at].strip(), source))
    return made


def own_lines(stub: str, source: str) -> set[int]:
    """Numbers of the lines that a solution adds to its stub: no imports, no annotations alone."""
    ours = stub.splitlines()
    lines = source.splitlines()
    matcher = difflib.SequenceMatcher(None, ours, lines, autojunk=False)
    added = {
        line + 1
        for kind, _, _, first, last in matcher.get_opcodes()
        if kind in ("insert", "replace")
        for line in range(first, last)
    }
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef):
            head = node.body[0].lineno if hasattr(node, "body") else (node.end_lineno or 0) + 1
            added -= set(range(node.lineno, head))
        if isinstance(node, ast.AnnAssign) and node.value is None:
            added.discard(node.lineno)
    return {line for line in added if BEGIN not in lines[line - 1]}


def known_equal(lab: Lab) -> dict[str, str]:
    """Mutants that change nothing, each with the reason."""
    path = MUTANTS / f"{lab.key}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def verdicts(lab: Lab, solved: Path, found: list[Mutant]) -> Iterator[Verdict]:
    """What became of each mutant of a solved folder, in order."""
    equal = known_equal(lab)
    [right] = fresh_processes(variants.observe, [(lab.key, None, 1)], 1)
    tried = [mutant for mutant in found if mutant.key not in equal]
    noticed = zip(
        tried, fresh_processes(_try, [(lab, solved, m, right) for m in tried]), strict=True
    )
    for mutant in found:
        if mutant.key in equal:
            yield Verdict(mutant, "", equal[mutant.key])
        else:
            yield Verdict(*next(noticed))


def _try(work: tuple[Lab, Path, Mutant, dict]) -> str:
    """Who notices this mutant. Runs in a process of its own, which an endless loop may use up."""
    lab, solved, mutant, right = work
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(PATIENCE)
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder)
        shutil.copytree(solved, package / lab.package, ignore=shutil.ignore_patterns("__pycache__"))
        (package / lab.package / mutant.file).write_text(mutant.source, encoding="utf-8")
        try:
            record = run_checks(Run(lab.key, package, first=True))
            if any(outcome.status is not Status.PASSED for outcome in record.outcomes):
                return "checks"
            seen = variants.observe((lab.key, package, 1))
        except (TimeoutError, MemoryError):
            return "checks"
    for name, data in right.items():
        got = observation_json.decode(seen[name])
        if scenarios.judge(got, observation_json.decode(data)):
            return "scenarios"
    return ""


def _too_long(*_: object) -> None:
    raise TimeoutError
