"""`nanovllm serve` with faults in its engines: `python -m tests.faulty_server FAULTS OPTIONS`.

FAULTS: `nan@5,crash@9`: kinds of lab 12 at these steps, counted over all engines. Besides them
`stuck@7`: a step that sleeps in the driver's own thread, which no end of a rank ends; `poison@11`:
logits are NaN for requests whose prompt begins with token 11.
"""

from __future__ import annotations

import sys
import time
from itertools import count
from typing import Any

from nanovllm.cli import main
from nanovllm.llm.parallel_level import ParallelRung
from nanovllm.resilience.faults import FaultyEngine
from nanovllm.resilience.kinds import Fault, Kind


def run(faults: str, options: list[str]) -> None:
    """Serve, as `nanovllm serve` does."""
    planned: dict[str, list[int]] = {}
    for fault in faults.split(",") if faults else ():
        kind, _, number = fault.partition("@")
        planned.setdefault(kind, []).append(int(number))
    stuck, poison = planned.pop("stuck", ()), planned.pop("poison", ())
    known = [Fault(step, Kind(kind)) for kind, steps in planned.items() for step in steps]
    numbers, rounds, made = count(), count(), ParallelRung.make_engine

    class Stuck(FaultyEngine):
        def step(self) -> Any:
            if next(rounds) in stuck:
                time.sleep(3600)
            return super().step()

    def make_engine(self: ParallelRung) -> Any:
        engine = made(self)
        execute = engine.execute

        def executed(plan: Any) -> Any:
            logits = execute(plan)
            for row, chunk in enumerate(chunk for chunk in plan.chunks if chunk.completes):
                if chunk.request.sequence.prompt_token_ids[0] in poison:
                    logits[row] = float("nan")
            return logits

        engine.execute = executed
        return Stuck(engine, known, numbers)

    ParallelRung.make_engine = make_engine
    sys.argv = ["nanovllm", "serve", *options]
    main()


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2:])
