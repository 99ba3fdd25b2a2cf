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
import time
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from grader.authoring import mistakes, variants
from grader.checks import observation_json, scenarios
from grader.checks.known_mistakes import borne_out, recognise
from grader.checks.run_checks import Record, Run, fresh_processes, run_checks
from grader.course import checks_json
from grader.course.errors import LabError
from grader.course.lab_toml import Lab
from grader.course.outcome import Status
from grader.course.paths import MUTANTS
from grader.course.stubs import BEGIN, definitions, lab_stubs

MEMORY = 8 << 30  # bytes that a mutant may have; more than any lab needs
PATIENCE = 4  # times the processor time that right code takes; then it is an endless loop
NOTHING = {"at": "", "seen": {}}
LEFT_OUT = (  # they take arguments, or crash at once wherever numbers are no whole ones
    "VariableReplacer", "VariableInserter", "RemoveDecorator", "ExceptionReplacer", "Shift", "Bit",
    "Invert", "_Is",
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
    def symbol(self) -> str:
        """The innermost function or class around the changed line, by its qualified name."""
        inside = [
            ((node.end_lineno or 0) - node.lineno, name)
            for name, node in definitions(self.source)
            if node.lineno <= self.line <= (node.end_lineno or 0)
        ]
        return min(inside)[1] if inside else ""

    @property
    def key(self) -> str:
        """What it is called in the list of those that change nothing."""
        return f"{self.file}: {self.before} -> {self.after}"

    @property
    def any_of_line(self) -> str:
        """What all mutants of its line are called there."""
        return f"{self.file}: {self.before} -> *"


@dataclass(frozen=True)
class Verdict:
    """Who noticed a mutant: "checks", "scenarios", or nobody (""); or it is known to be equal.

    `named` holds the symbols of the known mistake that the first card gave as a fact.
    """

    mutant: Mutant
    noticed: str
    check: str = ""
    named: str = ""
    reason: str = ""

    @property
    def named_wrongly(self) -> bool:
        """Whether the card's mistake lies elsewhere than what was changed."""
        if not self.named:
            return False
        module, _, symbol = self.named.partition(":")
        inside = self.mutant.symbol
        near = symbol.startswith(inside) or inside.startswith(symbol)
        return module != self.mutant.file.removesuffix(".py") or not near


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
        source = mutate_code(sources[name], operator(), occurrence) or sources[name]
        with contextlib.suppress(SyntaxError):
            same = source.replace("strict=False", "strict=True")  # of lists that are of one length
            if ast.dump(ast.parse(same)) != ast.dump(ast.parse(sources[name])):
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
            function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            head = node.body[0].lineno if function else (node.end_lineno or 0) + 1
            added -= set(range(node.lineno, head))
        if isinstance(node, ast.AnnAssign) and node.value is None:
            added.discard(node.lineno)
    return {line for line in added if BEGIN not in lines[line - 1]}


def known_equal(lab: Lab) -> dict[str, str]:
    """Mutants that change nothing, each with the reason; `-> *` stands for all of one line."""
    path = MUTANTS / f"{lab.key}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def verdicts(lab: Lab, solved: Path, found: list[Mutant], jobs: int = 0) -> Iterator[Verdict]:
    """What became of each mutant of a solved folder, in order."""
    known = known_equal(lab)
    equal = {one.key: known.get(one.key) or known.get(one.any_of_line, "") for one in found}
    [(right, seconds)] = fresh_processes(_right, [(lab, solved)], 1)
    tried = [mutant for mutant in found if not equal[mutant.key]]
    work = [(lab, solved, mutant, right, PATIENCE * seconds) for mutant in tried]
    noticed = fresh_processes(_try, work, jobs)
    for mutant in found:
        if equal[mutant.key]:
            yield Verdict(mutant, "", reason=equal[mutant.key])
        else:
            yield Verdict(mutant, *next(noticed))


def _right(work: tuple[Lab, Path]) -> tuple[dict, float]:
    """What the scenarios see of right code, and the seconds that checks and scenarios take."""
    lab, solved = work
    begun = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        _copied(lab, solved, Path(folder))
        record = run_checks(Run(lab.key, Path(folder)))
        wrong = [outcome for outcome in record.outcomes if outcome.status is not Status.PASSED]
        if wrong:
            raise LabError(f"{wrong[0].check} fails before anything is changed: {wrong[0].reason}.")
        # Of the same copy, while it is there: scenarios import what no check has.
        return variants.observe((lab.key, Path(folder), 1)), time.process_time() - begun


def _copied(lab: Lab, solved: Path, package: Path) -> Path:
    shutil.copytree(solved, package / lab.package, ignore=shutil.ignore_patterns("__pycache__"))
    return package / lab.package


def _try(work: tuple[Lab, Path, Mutant, dict, float]) -> tuple[str, str, str]:
    """Who notices this mutant, the check that does, and the symbol that its card names."""
    lab, solved, mutant, right, seconds = work
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGPROF, _too_long)
    signal.setitimer(signal.ITIMER_PROF, seconds, 1.0)  # again, where the next check loops too
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder)
        (_copied(lab, solved, package) / mutant.file).write_text(mutant.source, encoding="utf-8")
        try:
            own, others = _own_first(lab, mutant)
            record = run_checks(Run(lab.key, package, files=own))
            noticed, named = _noticed(record), _named(lab, record)
            if noticed:  # a variant has other symbols
                return "checks", noticed, named if solved == lab.reference else ""
            if others:
                noticed = _noticed(run_checks(Run(lab.key, package, files=others, first=True)))
            if noticed:
                return "checks", noticed, ""
            seen = variants.observe((lab.key, package, 1))
        except (_TooLong, MemoryError, RuntimeError):  # pytest may not outlive the first two
            return "checks", "", ""
    for name, data in right.items():
        got = observation_json.decode(seen[name])
        if scenarios.judge(got, observation_json.decode(data)):
            return "scenarios", name, ""
    return "", "", ""


def _own_first(lab: Lab, mutant: Mutant) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The lab's files of checks: those whose tasks are about the changed file, and the others."""
    module = mutant.file.removesuffix(".py")
    tasks = {t.id for t in lab.tasks if any(s.partition(":")[0] == module for s in t.symbols)}
    checks = checks_json.read(lab).checks.values()
    files = sorted({check.file for check in checks})
    own = tuple(file for file in files if any(c.file == file and c.task in tasks for c in checks))
    return own or tuple(files), tuple(file for file in files if own and file not in own)


def _noticed(record: Record) -> str:
    """The first check of a run that did anything but pass."""
    return next((o.check for o in record.outcomes if o.status is not Status.PASSED), "")


def _named(lab: Lab, record: Record) -> str:
    """The symbol of a known mistake that a card gives as a fact."""
    for outcome in record.outcomes:
        known = recognise(lab, outcome.check, record.observations.get(outcome.check, NOTHING))
        of_task = [other for other in record.outcomes if other.task == outcome.task]
        if len(known) != 1 or not known[0].sure:
            continue
        if borne_out(lab, known[0].name, of_task, record.observations):
            return next(m.symbol for m in mistakes.bank(lab) if m.name == known[0].name)
    return ""


class _TooLong(BaseException):
    """Not an Exception: an engine takes these for errors of a request, and goes on."""


def _too_long(*_: object) -> None:
    raise _TooLong
