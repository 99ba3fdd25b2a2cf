"""Which known mistakes the hidden scenarios see: where checks are forged, only these count."""

from __future__ import annotations

import os
import resource
import signal
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grader.authoring import mistakes
from grader.authoring.mistakes import Mistake
from grader.checks import observation_json, scenarios
from grader.checks.compiled import compiled
from grader.checks.kernel_plans import COMPILED_FOR
from grader.checks.kernel_text import ALONE
from grader.checks.run_checks import fresh_processes
from grader.checks.scenarios import Scenario
from grader.course.lab_toml import Lab
from grader.course.paths import HIDDEN

MEMORY = 10 << 30  # bytes that a mistake may have
SECONDS = 40  # of processor time for one scenario; the right code takes far less


@dataclass(frozen=True)
class Sight:
    """The first draw of a scenario, from 0, that sees a mistake; None: none does."""

    mistake: Mistake
    draw: int | None
    scenario: str = ""

    @property
    def at_once(self) -> bool:
        """Whether the draws of one student see it."""
        return self.draw is not None and self.draw < scenarios.DRAWS


def only_counted(lab: Lab) -> dict[str, str]:
    """Mistakes that results do not show, each with the reason; `hidden/labNN/unseen.toml`."""
    path = HIDDEN / lab.key / "unseen.toml"
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def sights(lab: Lab, draws: int, only: str = "", jobs: int = 0) -> Iterator[Sight]:
    """Plant each mistake that results may show, or only one, and run the scenarios of its task."""
    [right] = fresh_processes(_right, [(lab, draws)], 1)
    left_out = only_counted(lab)
    planted = [one for one in mistakes.bank(lab) if one.name not in left_out]
    planted = [one for one in planted if only in ("", one.name)]
    yield from fresh_processes(_look, [(lab, mistake, right) for mistake in planted], jobs)


def _right(work: tuple[Lab, int]) -> dict[str, list[Any]]:
    """What each scenario sees on the reference, by draw."""
    lab, draws = work
    os.environ |= {"NANOVLLM_CODE": "reference", "TRITON_INTERPRET": "1"}
    import nanovllm

    return {
        one.name: [observation_json.encode(one.observe(nanovllm, draw)) for draw in range(draws)]
        for one in scenarios.load(lab)
    }


def _look(work: tuple[Lab, Mistake, dict[str, list[Any]]]) -> Sight:
    lab, mistake, right = work
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGPROF, _too_long)
    with tempfile.TemporaryDirectory() as folder:
        mistakes.plant(mistake, lab, Path(folder))
        mine = {"NANOVLLM_CODE": lab.key, "NANOVLLM_MINE": folder, "TRITON_INTERPRET": "1"}
        os.environ |= mine
        import nanovllm

        its = [one for one in scenarios.load(lab) if one.task == mistake.task]
        for draw in range(max(map(len, right.values()))):
            for one in its:
                signal.setitimer(signal.ITIMER_PROF, SECONDS, 1.0)
                try:
                    got = observation_json.encode(one.observe(nanovllm, draw))
                except BaseException:
                    return Sight(mistake, draw, one.name)
                expected = observation_json.decode(right[one.name][draw])
                if scenarios.judge(observation_json.decode(got), expected):
                    return Sight(mistake, draw, one.name)
                if not draw and one.name.startswith(ALONE) and _is_refused(one, nanovllm):
                    return Sight(mistake, draw, one.name)
    return Sight(mistake, None)


def _is_refused(kernels: Scenario, nanovllm: Any) -> bool:
    """Whether the compiler does not take a kernel, as in the box where kernels run alone."""
    found = compiled(lambda *_: kernels.observe(nanovllm, 0), COMPILED_FOR, quick=True)
    return any(one.refused for one in found)


class _TooLong(BaseException):
    """Not an Exception: an engine takes these for errors of a request, and goes on."""


def _too_long(*_: object) -> None:
    raise _TooLong
