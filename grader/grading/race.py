"""Lab 14's race: an entry and the plain engine take turns in the box; the clock is outside."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from grader.checks import race_draws
from grader.course.lab_toml import Lab
from grader.grading import submission
from grader.grading.class_submissions import HandedIn
from grader.grading.grade_one import boxed_files
from grader.grading.report_text import line
from grader.grading.run_items import SILENT, crash
from grader.sandbox.job import BoxError, Work
from grader.sandbox.limits import Limits
from grader.sandbox.meter import Meter
from grader.sandbox.sandbox import Sandbox
from grader.sandbox.talk import Talk
from grader.sandbox.worker import Worker

# Its files are memory that nobody would count, so there is little room for them.
LIMITS = Limits(
    seconds=900, item_seconds=60, memory_mb=1024, disk_mb=1, processes=1, submission_mb=1
)
ROUNDS = 20
PEAKS = 4  # rounds more, for memory alone: how the C library keeps freed memory is luck otherwise
MANY, ONE, MEMORY = "tokens/s at 64 requests", "latency of one request", "memory"
TRACKS = (MANY, ONE, MEMORY)
TURNS = {MANY: 13, ONE: 31}  # of each side, in a round; the first is to warm up
STILL = 1e-3  # processor seconds that it takes at most to stand still
NO_MEMORY = ("MemoryError", "can't allocate memory")
SAYS = 600  # characters of an entry's docstring
Task = dict[str, Any]


class FellOut(Exception):
    """Why an entry is out of the race, in one sentence."""


@dataclass
class Result:
    """What came of one entry. ratios: the plain engine's use over its, by round and turn."""

    student: str
    says: str = ""  # the docstring of capstone.py
    problem: str = ""  # why it is out of the race
    counts: dict[str, float] = field(default_factory=dict)
    plain: dict[str, float] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)  # operations, by name
    plain_names: dict[str, int] = field(default_factory=dict)
    ratios: dict[str, list[list[float]]] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)  # of the entry's turns


@dataclass(frozen=True)
class Race:
    """What is equal for all entries."""

    lab: Lab
    seed: str
    sandbox: Sandbox
    rounds: int = ROUNDS
    limits: Limits = LIMITS

    def run(self, entry: HandedIn, advance: Callable[[str], None] = lambda said: None) -> Result:
        """Race one entry; whatever it does, there is a result. advance: told what has begun."""
        found = submission.read(entry.path, self.lab, self.limits)
        result = Result(line(entry.student), _says(found.files.get("capstone.py", b"")))
        result.problem = found.problem
        if not found.problem and "capstone.py" not in found.files:
            result.problem = "it holds no capstone.py"
        for last in (False, True):
            if result.problem:
                break
            try:
                self._run(boxed_files(found, self.lab), result, advance)
                break
            except BoxError as error:
                if last:
                    result.problem = f"the grader could not finish: {error}"
        return result

    def _run(self, files: dict[str, str], result: Result, advance: Callable[[str], None]) -> None:
        """The gate, the rounds, each in new processes, and the counts."""
        result.ratios = {track: [] for track in TRACKS}
        result.seconds = {MANY: [], ONE: []}
        try:
            with self._side(files) as own, self._side(None) as plain:
                advance("gate")
                for number, (load, run) in enumerate(race_draws.gate(self.seed), 1):
                    where = f"gate, model {number} ({load['model']['family']})"
                    self._load(own, plain, load, where)
                    self._agree(load, run, own.ask(run, where), plain.ask(run, where), where)
            for number in range(1, self.rounds + 1):
                with self._side(files) as own, self._side(None) as plain:
                    advance(f"round {number}")
                    self._round(own, plain, number, result)
                    if number == self.rounds:
                        self._count(own, plain, result)
            for number in range(self.rounds + 1, self.rounds + 1 + PEAKS):
                with self._side(files, steady=True) as own, self._side(None, steady=True) as plain:
                    self._peaks(own, plain, number, result)
        except FellOut as why:
            result.problem = line(str(why))

    @contextlib.contextmanager
    def _side(self, files: dict[str, str] | None, steady: bool = False) -> Iterator[Side]:
        """The process of an entry (None: of the plain engine), which can start no other.

        steady: what it frees goes back to the system at once, and what it has is what it needs.
        """
        work = Work(self.lab.key, [], files or {})
        with self.sandbox.opened(self.lab, work, self.limits, self.limits.seconds) as opened:
            yield Side(*opened, files is not None, steady)

    def _load(self, own: Side, plain: Side, load: Task, where: str) -> None:
        for side in (own, plain):
            side.ask({**load, "entry": side.is_entry}, where)

    def _round(self, own: Side, plain: Side, number: int, result: Result) -> None:
        """Both tracks, turn beside turn: a processor's speed is much the same for both. A ratio is
        of two turns each, in one of which the one begins, in the next the other."""
        load, where = race_draws.timed(self.seed), f"round {number}"
        self._load(own, plain, load, where)
        for track, draw in ((MANY, race_draws.many), (ONE, race_draws.one)):
            used: dict[Side, list[float]] = {own: [], plain: []}
            for turn in range(number * TURNS[track], (number + 1) * TURNS[track]):
                run, texts = draw(self.seed, turn), {}
                for side in (own, plain) if turn % 2 else (plain, own):
                    seconds, texts[side] = side.timed(run, where)
                    used[side].append(seconds)
                self._agree(load, run, texts[own], texts[plain], where)
            mine, others = (_in_twos(used[side][1:]) for side in (own, plain))
            result.ratios[track].append([b / a for a, b in zip(mine, others, strict=True)])
            result.seconds[track] += mine

    def _peaks(self, own: Side, plain: Side, number: int, result: Result) -> None:
        """Memory: one turn of many requests each."""
        load, where = race_draws.timed(self.seed), f"memory, round {number - self.rounds}"
        self._load(own, plain, load, where)
        run = race_draws.many(self.seed, number * TURNS[MANY])
        self._agree(load, run, own.timed(run, where)[1], plain.timed(run, where)[1], where)
        most = own.peak_mb()
        if most <= 0:
            raise FellOut(f"{where}: it had no memory of its own")
        result.ratios[MEMORY].append([plain.peak_mb() / most])

    def _count(self, own: Side, plain: Side, result: Result) -> None:
        load = race_draws.timed(self.seed)
        runs = [race_draws.many(self.seed, 0), race_draws.one(self.seed, 0)]
        texts: Task = {}
        for side in (plain, own):
            side.meter.go()
            at_once, alone = (side.ask({**run, "count": True}, "the counts") for run in runs)
            counts, single = _numbers(at_once.get("counts")), _numbers(alone.get("counts"))
            counts["launches a step"] = single.get("operations", 0) / max(1, single.get("steps", 1))
            counts.pop("steps", None)
            names = {line(name)[:40]: int(n) for name, n in _numbers(at_once.get("names")).items()}
            if side is plain:
                texts, result.plain, result.plain_names = at_once, counts, names
            else:
                self._agree(load, runs[0], at_once, texts, "the counts")
                result.counts, result.names = counts, names

    def _agree(self, load: Task, run: Task, own: Task, plain: Task, where: str) -> None:
        """FellOut unless all texts are the plain engine's, or as good where logits are equal."""
        texts = own.get("texts"), plain["texts"]
        if what := race_draws.disagreement(load, run, *texts, self._near):
            raise FellOut(f"{where}, {what}")

    def _near(self, task: Task) -> bool:
        answer = self.sandbox.trusted(task, Limits(), self.limits.item_seconds)
        return any(event.get("found") == {"near": True} for event in answer.events)


class Side:
    """One of the two processes; what a plain one cannot do is the grader's fault."""

    def __init__(self, talk: Talk, worker: Worker, is_entry: bool, steady: bool = False) -> None:
        self.talk, self.is_entry = talk, is_entry
        self.ask({"kind": "race", "do": "ready", "steady": steady}, "the start")
        self.meter = Meter(worker)
        self.peak_mb = self.meter.peak_mb
        self.last = 0.0

    def ask(self, task: Task, where: str) -> Task:
        """What it found; FellOut where there is nothing."""
        answer = self.talk.ask(task)
        found = next((e["found"] for e in answer.events if isinstance(e.get("found"), dict)), {})
        raised = str(found.get("raised", ""))
        if any(words in raised for words in NO_MEMORY):
            raised = (
                f"MemoryError: it asked for more than {self.talk.limits.memory_mb} MB of memory"
            )
        why = answer.ended or crash(answer) or (f"it raised {raised}" if raised else "")
        if why or not found:
            problem = f"{where}: {why or SILENT}"
            raise FellOut(problem) if self.is_entry else BoxError(f"the plain engine: {problem}")
        return found

    def timed(self, task: Task, where: str) -> tuple[float, Task]:
        """Processor seconds since its last turn, and what it found; then it stands still.

        So what it does after it has answered is part of its next turn. FellOut where it has gone on
        beside the other's.
        """
        try:
            if self.last and self.meter.seconds() - self.last > STILL:
                raise FellOut(f"{where}: it ran while the other had its turn")
            self.meter.go()
            found = self.ask(task, where)
            now = self.meter.stop()
        except ProcessLookupError:
            raise FellOut(f"{where}: {SILENT}") from None
        used, self.last = now - self.last, now
        return used, found


def _in_twos(seconds: list[float]) -> list[float]:
    """The means of the first two, the next two, and so on."""
    return [(a + b) / 2 for a, b in zip(seconds[::2], seconds[1::2], strict=True)]


def _says(source: bytes) -> str:
    """The docstring of a module that nobody has run."""
    try:
        said = ast.get_docstring(ast.parse(source)) or ""
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return ""
    return line(said)[:SAYS]


def _numbers(found: Any) -> dict[str, float]:
    """Of what an entry says that it has counted, what are numbers."""
    pairs = found.items() if isinstance(found, dict) else ()
    return {k: v for k, v in pairs if isinstance(v, int | float) and abs(v) < 1e15}
