"""How the engine got faster lab by lab: every stage on one workload, in rounds."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

import torch

from nanovllm.bench.rounds import Report
from nanovllm.bench.stages import STAGES, Answers, Room
from nanovllm.bench.workload import TEXTS, Workload, text_workload
from nanovllm.llm.options import OptionError
from nanovllm.llm.packages import is_mine
from nanovllm.model.transformer import Transformer

SYSTEM = (
    "Mia went to the park. She saw a dog and a cat. Tom has a red ball. "
    "Ben's code is 1805. Mia's code is 7342. "
)


@dataclass
class StageResult:
    """What became of a stage; `why_not` says so if it could not run."""

    name: str
    lab: str
    mine: bool = False
    rates: list[float] = field(default_factory=list)  # output tokens/s of each round
    why_not: str = ""
    same_answers: bool | None = None

    @property
    def rate(self) -> float | None:
        """The median over the rounds."""
        return median(self.rates) if self.rates else None


def shared_workload(encode: Callable[[str], list[int]], count: int, seed: int = 0) -> Workload:
    """Requests that all begin with the same system prompt, as in a service; uneven answers."""
    draw = random.Random(seed)
    texts = [SYSTEM + draw.choice(TEXTS) for _ in range(count)]
    return text_workload([encode(text) for text in texts], (4, 40), seed)


def progression(
    model: Transformer, workload: Workload, room: Room, rounds: int, report: Report
) -> list[StageResult]:
    """Run all stages in rounds, each in its turn; one whose code is not there is left out."""
    results = {name: StageResult(name, lab) for name, (lab, _, _) in STAGES.items()}
    reference: Answers | None = None
    torch.manual_seed(0)
    for number in range(rounds + 1):  # the first warms up, with few requests, and counts nothing
        asked = workload if number else workload.first(2)
        for name, result in results.items():
            if result.why_not:
                continue
            try:
                result.mine = is_mine(STAGES[name][1])
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
    return list(results.values())


def _why_not(error: Exception) -> str:
    from grader.unwritten import unwritten  # it knows the names of files that start empty

    absent = unwritten(error)
    if absent:
        return f"not written yet: {absent}"
    if isinstance(error, OptionError | ModuleNotFoundError):  # of a lab that is not here
        return str(error)
    return f"{type(error).__name__}: {error}"
