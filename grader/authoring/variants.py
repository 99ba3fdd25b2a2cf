"""Right variants: whole solutions of a lab by other hands, kept as patches over its stubs.

Each differs from the reference in structure, wording and order of arithmetic, and was written from
the release alone. A check or scenario that takes a point from one of them asks for more than the
contract does.
"""

from __future__ import annotations

import difflib
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from grader.checks import observation_json, scenarios
from grader.checks.run_checks import Run, fresh_processes, run_checks
from grader.course.errors import LabError
from grader.course.lab_toml import Lab, find_lab
from grader.course.outcome import Status
from grader.course.paths import VARIANTS
from grader.course.stubs import lab_stubs, write_stubs


class VariantError(LabError):
    """A variant that does not fit the stubs any more."""


def kept(lab: Lab) -> list[Path]:
    """The patches of a lab, `solutions/variants/labNN/*.patch`."""
    return sorted((VARIANTS / lab.key).glob("*.patch"))


def keep(lab: Lab, solved: Path, name: str, folder: Path = VARIANTS) -> Path:
    """Write down how the folder of somebody's solution differs from the stubs."""
    stubs, pieces = lab_stubs(lab), []
    for path in sorted(solved.glob("*.py")):
        before = stubs.get(path.name, "").splitlines(keepends=True)
        after = path.read_text(encoding="utf-8").splitlines(keepends=True)
        old = f"a/{path.name}" if path.name in stubs else "/dev/null"
        pieces += difflib.unified_diff(before, after, old, f"b/{path.name}")
    target = folder / lab.key / f"{name}.patch"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("".join(pieces), encoding="utf-8")
    return target


def write(variant: Path, lab: Lab, package: Path) -> None:
    """The variant as a student's package folder."""
    folder = package / lab.package
    write_stubs(lab, folder)
    done = subprocess.run(
        ["git", "apply", "-C1", str(variant.resolve())],
        cwd=folder,
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(package)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise VariantError(
            f"{variant.name} does not fit the stubs of {lab.key} any more:\n{done.stderr}"
            "Bring its lines into today's stubs by hand, and keep it again."
        )


def lost(variant: Path, lab: Lab, seeds: range) -> list[str]:
    """What a variant loses at these seeds, with the reason: checks, then hidden scenarios."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder)
        write(variant, lab, package)
        runs = [Run(lab.key, package, seed=seed) for seed in seeds]
        for run, record in zip(runs, fresh_processes(run_checks, runs), strict=True):
            found += [
                f"seed {run.seed}, {o.check}: {o.reason}"
                for o in record.outcomes
                if o.status is not Status.PASSED
            ]
        work = [(lab.key, path, seed) for seed in seeds for path in (package, None)]
        seen = list(fresh_processes(observe, work))
    for seed, got, expected in zip(seeds, seen[::2], seen[1::2], strict=True):
        for name, data in expected.items():
            observed, right = observation_json.decode(got[name]), observation_json.decode(data)
            if difference := scenarios.judge(observed, right):
                found.append(f"seed {seed}, scenario {name}: {difference.lines[0]}")
    return found


def observe(work: tuple[str, Path | None, int]) -> dict[str, Any]:
    """What each scenario of a lab sees on a package (None: the reference), as JSON."""
    key, package, seed = work
    os.environ["NANOVLLM_CODE"] = key if package else "reference"
    os.environ["NANOVLLM_MINE"] = str(package or "")
    os.environ["TRITON_INTERPRET"] = "1"
    import nanovllm

    seen = {}
    for scenario in scenarios.load(find_lab(key)):
        try:
            seen[scenario.name] = observation_json.encode(scenario.observe(nanovllm, seed))
        except Exception as error:
            seen[scenario.name] = f"raised {error!r}"
    return seen
