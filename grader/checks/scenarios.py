"""Hidden scenarios: functions of the student's package that return observations, no verdicts."""

from __future__ import annotations

import importlib.util
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from grader.checks.compare import Difference, as_array, difference, is_tensor
from grader.course.lab_toml import Lab
from grader.course.paths import HIDDEN

DRAWS = 2  # of each scenario, at seeds of the student's own
HALF, WHOLE = {"float16", "bfloat16"}, {"float32", "float64"}
Body = Callable[[Any, np.random.Generator], Any]


@dataclass(frozen=True)
class Scenario:
    """One hidden scenario of a task."""

    name: str
    task: int
    body: Body

    def observe(self, nanovllm: Any, seed: int) -> Any:
        """Run on the package `nanovllm` with random inputs drawn from `seed`."""
        return self.body(nanovllm, np.random.default_rng([seed, zlib.crc32(self.name.encode())]))


def scenario(task: int) -> Callable[[Body], Scenario]:
    """Mark a function `(nanovllm, rng) -> observations` as a hidden scenario of a task."""
    return lambda body: Scenario(body.__name__, task, body)


def load(lab: Lab, folder: Path = HIDDEN) -> list[Scenario]:
    """The scenarios of a lab, in the order of their files and lines."""
    found: list[Scenario] = []
    for path in sorted((folder / lab.key).glob("*.py")):
        spec = importlib.util.spec_from_file_location(f"hidden_{lab.key}_{path.stem}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found += [value for value in vars(module).values() if isinstance(value, Scenario)]
    return found


def judge(observed: Any, reference: Any) -> Difference | None:
    """None when the observations agree with the reference's, else where they differ."""
    return difference(_as_precise(observed, reference), reference)


def _as_precise(observed: Any, reference: Any) -> Any:
    """The observation without the leniency that a check grants to the rounding of half precision.

    The type is the student's choice: in bfloat16 an error of 3 % would pass for one of rounding.
    """
    if isinstance(reference, Mapping) and isinstance(observed, Mapping):
        return {k: _as_precise(v, reference.get(k)) for k, v in observed.items()}
    if isinstance(reference, list | tuple) and isinstance(observed, list | tuple):
        pairs = zip_longest(observed, reference[: len(observed)])
        return [_as_precise(one, other) for one, other in pairs]
    if not all(is_tensor(one) or isinstance(one, np.ndarray) for one in (observed, reference)):
        return observed
    (have, name), (_, wanted) = as_array(observed), as_array(reference)
    rounded = name in HALF and name != wanted and wanted in HALF | WHOLE
    return have.astype(np.float32) if rounded else observed
