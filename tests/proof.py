"""`make proof`: tests that take too long for `make test`, once for each state of what they prove.

A part's tests carry the marker `proof`. When they pass, proofs.json gets the digest of the files
that they are about; as long as it fits, the part is proved, and is not run again. So a run that
was stopped goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from grader.course.digest import IGNORED
from grader.course.lab_toml import labs
from grader.course.paths import ROOT

ENGINE = {  # parts by name: their tests, and the packages or folders that these are about
    "options": (
        ("option_pairs", "compaction", "devices", "speculative_options", "quantized_kv",
         "paging_metamorphic", "speculative_llm", "swap_space", "llm", "llm_levels"),
        ("llm", "batching", "paging", "fast", "gpu", "quantization", "speculative"),
    ),
    "compiled": (
        ("fast", "fast_quantized", "prompt_logprobs", "gpu_engine"), ("fast", "gpu", "batching")
    ),
    "checkpoints": (
        ("checkpoints", "quantized_checkpoints", "models", "moe"), ("model", "quantization")
    ),
    "ranks": (
        ("parallel_engine", "parallel_kills", "parallel_server", "parallel_options"), ("parallel",)
    ),
    "fleet": (("cluster_routing", "cluster_serving", "cluster_transfer"), ("cluster",)),
    "faults": (
        ("resilience_server", "resilience_supervisor", "resilience_simulation",
         "resilience_levels", "resilience_processes", "resilience_fleet"),
        ("resilience",),
    ),
    "traces": (("traces", "prometheus"), ("observability", "telemetry")),
    "commands": (("bench", "bench_serve", "at_work", "planning"), ("bench", "planning")),
    "classroom": (
        ("nbgrader_handbook", "grading_releases", "grading_dask", "grading_sandbox", "gradescope",
         "grading_speed"),
        ("grader/sandbox", "grader/grading", "grader/classroom", "grader/README.md"),
    ),
    "attacks": (
        ("grading_attacks", "grading_fuzzing", "grading_kernels"),
        ("grader/sandbox", "grader/grading", "grader/classroom", "grader/checks/kernel_plans.py",
         "grader/checks/kernel_text.py"),
    ),
    "grader": (
        ("release", "mistake_records", "collect_limits"), ("grader/release", "grader/checks")
    ),
}  # fmt: skip
RACE = (
    "grader/sandbox", "grader/checks/race_runs.py", "grader/checks/race_draws.py",
    "grader/grading/race.py", "grader/grading/race_board.py", "grader/student/race.py",
    "tests/race",
)  # fmt: skip
GRACE = 60  # seconds in which stopped tests end their processes
RECORD = Path(__file__).parent / "proofs.json"
app = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class Part:
    """Tests of the marker `proof`, and the files and folders whose digest they vouch for."""

    name: str
    tests: tuple[str, ...]
    about: tuple[str, ...]
    only: str = ""  # pytest's -k

    @property
    def digest(self) -> str:
        """Of the names and contents of all its files."""
        found = hashlib.sha256()
        for path in sorted(path for name in self.about for path in _files(ROOT / name)):
            found.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
        return found.hexdigest()[:16]

    def run(self, seconds: float) -> bool | None:
        """Whether its tests pass, None if they were stopped; progress and failures are shown."""
        words = [sys.executable, "-m", "pytest", *self.tests, "-m", "proof", "-q"]
        words += ["-k", self.only] if self.only else []
        with subprocess.Popen(words, cwd=ROOT) as tests:
            try:
                return tests.wait(seconds) == 0
            except subprocess.TimeoutExpired:
                tests.send_signal(signal.SIGINT)  # pytest ends what its tests have started
                try:
                    tests.wait(GRACE)
                except subprocess.TimeoutExpired:
                    tests.kill()
                return None


def _files(path: Path) -> Iterator[Path]:
    found = [path] if path.is_file() else path.rglob("*")
    return (one for one in found if one.is_file() and not IGNORED & set(one.parts))


def parts() -> dict[str, Part]:
    """Every part by its name."""
    packages = ("batching", "paging", "speculative", "fast", "gpu")
    engine = tuple(f"solutions/nanovllm/{name}" for name in packages)
    weights = tuple(f"solutions/nanovllm/{name}" for name in ("model", "quantization"))
    chapters = [f"labs/{lab.key}/README.md" for lab in labs()]
    found = [
        Part("speculation", ("tests/test_speculative_engine.py",), engine),
        Part("losses", ("tests/test_quantization_losses.py",), weights),
        Part("book", ("tests/test_book.py",), ("docs", *chapters)),
        Part("race", ("tests/test_race.py",), RACE),
    ]
    for lab in labs():
        # checks.json has the digests of the lab's checks and stubs.
        homes = [f"labs/{lab.key}/checks.json", f"solutions/nanovllm/{lab.package}"]
        kinds = ("hidden/{}", "mistakes/{}.py", "variants/{}", "mutants/{}.toml")
        homes += [f"solutions/{kind.format(lab.key)}" for kind in kinds]
        files = ("proof", "variants", "mutants", "scenarios", "release", "lab_hours")
        tests = tuple(f"tests/test_{name}.py" for name in files)
        found.append(Part(lab.key, tests, tuple(homes), lab.key))
    for lab in labs():
        homes = tuple(f"solutions/notebooks/{lab.key}{end}" for end in ("", ".py"))
        name = lab.key.replace("lab", "notebook")
        found.append(Part(name, ("tests/test_notebooks.py",), homes, lab.key))
    for name, (tests, packages) in ENGINE.items():
        homes = [each if "/" in each else f"solutions/nanovllm/{each}" for each in packages]
        found.append(Part(name, tuple(f"tests/test_{test}.py" for test in tests), tuple(homes)))
    return {part.name: part for part in found}


def proved() -> dict[str, str]:
    """The digests that were proved, by part."""
    return json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else {}


@app.command()
def main(
    only: Annotated[list[str] | None, typer.Argument(help="Parts; none: all.")] = None,
    also: Annotated[str, typer.Option(help="A commit; it chooses one more lab.")] = "",
    minutes: Annotated[float, typer.Option(help="Then stop, and keep what is proved.")] = 600,
) -> None:
    """Prove what has changed since it was proved."""
    known, end = parts(), time.monotonic() + 60 * minutes
    for name in only or []:
        if name not in known:
            raise typer.BadParameter(f"there is no part {name!r}; there are {', '.join(known)}.")
    record = proved()
    work = [part for name, part in known.items() if record.get(name) != part.digest]
    typer.echo(f"{len(known) - len(work)} of {len(known)} parts are proved.")
    if also:
        keys = [name for name in known if name.startswith("lab")]
        chosen = known[keys[int(also, 16) % len(keys)]]
        work += [chosen] if chosen not in work else []
    if only:
        work = [known[name] for name in only]
    failed, left = [], []
    for number, part in enumerate(work, 1):
        passed, digest = None, part.digest
        if (seconds := end - time.monotonic()) > 0:
            typer.echo(f"{part.name} ({number} of {len(work)}) ...")
            passed = part.run(seconds)
        if passed:
            new = {name: proved()[name] for name in known if name in proved()}
            new[part.name] = digest
            RECORD.write_text(json.dumps(new, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        elif passed is None:
            left.append(part.name)
        else:
            failed.append(part.name)
    if left:
        typer.echo(f"No time for: {', '.join(left)}. They are not proved; make proof goes on.")
    if failed:
        typer.echo(f"Failed: {', '.join(failed)}.", err=True)
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
