"""How the engine got faster lab by lab: every stage on one workload, in rounds."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

import torch

from nanovllm.bench.contestants import Ready
from nanovllm.bench.rounds import Report
from nanovllm.bench.stages import STAGES, Answers, Room
from nanovllm.bench.workload import Workload
from nanovllm.llm.lab_packages import is_mine
from nanovllm.llm.read_options import OptionError
from nanovllm.model.transformer import Transformer

LABS = ("model", "generation", "batching", "paging", "kernels")  # of labs 02 to 06, in order
ON_BLOCKS = {"compiled": (), "speculative": ("speculative",)}  # what runs there above lab 05


@dataclass
class StageResult:
    """What became of a stage; `why_not` says so if it could not run."""

    name: str
    lab: str
    mine: bool = False
    yours: list[str] = field(default_factory=list)  # the student's packages among those it runs
    rates: list[float] = field(default_factory=list)  # output tokens/s of each round
    why_not: str = ""
    same_answers: bool | None = None

    @property
    def rate(self) -> float | None:
        """The median over the rounds."""
        return median(self.rates) if self.rates else None


def progression(
    model: Transformer,
    workload: Workload,
    room: Room,
    rounds: int,
    report: Report,
    peers: Mapping[str, Ready] | None = None,
) -> list[StageResult]:
    """Run all stages in rounds, each in its turn; one whose code is not there is left out.

    peers: engines of others, measured behind the stages of each round. They get all requests at
    the start, which helps them a little.
    """
    results = {name: StageResult(name, lab) for name, (lab, _, _) in STAGES.items()}
    beside = {name: StageResult(name, "peer") for name in peers or {}}
    reference: Answers | None = None
    torch.manual_seed(0)
    for number in range(rounds + 1):  # the first warms up, with few requests, and counts nothing
        asked = workload if number else workload.first(2)
        for name, result in results.items():
            if result.why_not:
                continue
            try:
                result.mine, result.yours = is_mine(STAGES[name][1]), yours(name)
                answer = STAGES[name][2](model, room)
                start = time.perf_counter()
                answers = answer(asked)
                seconds = time.perf_counter() - start
            except Exception as error:  # the student's code may do anything; others go on
                result.why_not = _why_not(error)
                report(f"{name}: {result.why_not}")
                continue
            if number:
                reference = reference or answers
                result.same_answers = answers == reference
                result.rates.append(sum(map(len, answers)) / seconds)
                report(f"round {number}, {name}: {result.rates[-1]:.0f} tokens/s")
        for name, result in beside.items():
            told = (peers or {})[name].run(asked)
            if number:
                result.same_answers = told["token_ids"] == reference
                result.rates.append(sum(map(len, told["token_ids"])) / told["seconds"])
                report(f"round {number}, {name}: {result.rates[-1]:.0f} tokens/s")
    return [*results.values(), *beside.values()]


def yours(stage: str) -> list[str]:
    """The student's own packages among those that a stage runs: its lab's, and all before it."""
    if stage in ON_BLOCKS:
        runs = [*LABS[: LABS.index("paging") + 1], *ON_BLOCKS[stage]]
    else:
        runs = LABS[: LABS.index(STAGES[stage][1]) + 1]
    return [name for name in runs if is_mine(name)]


def _why_not(error: Exception) -> str:
    from grader.checks.unwritten import unwritten  # it knows the names of files that start empty

    absent = unwritten(error)
    if absent:
        return f"not written yet: {absent}"
    if isinstance(error, OptionError | ModuleNotFoundError):  # of a lab that is not here
        return str(error)
    return f"{type(error).__name__}: {error}"
