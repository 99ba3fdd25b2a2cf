"""Everything that is recorded, in one go: `python -m benchmarks.run --out benchmarks/results`.

Peers that are not there are left out and named. On a quiet machine of two processors it takes
about half an hour; --quick tries it all in a few minutes and records nothing worth keeping.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import planning_cost
from nanovllm.bench import runs
from nanovllm.bench.guessing_prompts import KINDS
from nanovllm.bench.machine import require_quiet, usable_cpus
from nanovllm.bench.process import ContestantError
from nanovllm.bench.record import save

TRANSFORMERS = ["transformers", "transformers-static", "transformers-continuous"]
ASSISTED = "transformers-assisted"
Part = Callable[[], runs.Outcome]


def parts(
    quick: bool,
    threads: int,
    vllm_python: str | None,
    llama_python: str | None,
    llama_speculative: str | None,
) -> dict[str, Part]:
    """What is run, by the name of its record; the peers' share of the time is the largest."""
    rounds, requests = (1, 8) if quick else (5, 64)
    vllm = ["vllm"] if vllm_python else []
    own = ["vllm-own-process"] if vllm_python else []
    llama = ["llama.cpp"] if llama_python else []
    common = {
        "threads": threads, "vllm_python": vllm_python, "llama_python": llama_python,
        "dtype": "bfloat16",
    }  # fmt: skip

    def throughput(model: str, names: list[str], rounds: int = rounds, **other: str) -> Part:
        options = common | other
        return lambda: runs.run_throughput(model, names, rounds, requests, report, **options)

    def latency(model: str, names: list[str], **other: str) -> Part:
        options: dict[str, Any] = common | other
        return lambda: runs.run_latency(model, names, rounds, report, **options)

    def speculative(model: str, batches: list[int], kinds: Sequence[str], tokens: int) -> Part:
        rounds = 2 if quick else 30
        at_once = batches[: 1 if quick else 4]
        example = None
        if llama_speculative and llama_python:
            example = llama_speculative, llama_python
        return lambda: runs.run_speculative(
            model, None, at_once, kinds, 4, rounds, tokens, True, 1, report, vllm_python, example
        )

    return {
        "progression": lambda: runs.run_progression(
            "bundled", rounds, 24, 4, "float32", threads, report, [*TRANSFORMERS, ASSISTED]
        ),
        "memory": lambda: runs.run_memory(32768, 2048, 16, 250, report),
        "speculative": speculative("bundled", [1, 8, 32, 64], KINDS, 48),
        "speculative-mid": speculative("mid", [1, 8, 32, 64], KINDS[:1], 16),
        "quantization-mid": lambda: runs.run_quantization(
            "mid", [1, 64], 4 if quick else 50, 4, "bfloat16", threads, report
        ),
        "policies": lambda: runs.run_policies(200, 20.0, 0),
        # what labs 02 to 05 build, without the compiled step, beside transformers' static batches
        **{
            f"plain-{model}{suffix}": throughput(
                model, ["nanovllm-plain", TRANSFORMERS[1]], 3, **kind
            )
            for model in ("tiny", "mid")
            for suffix, kind in (("", {}), ("-float32", {"dtype": "float32"}))
        },
        # one at a time is too slow for every round: it has its own short run
        "throughput-tiny": throughput("tiny", [*TRANSFORMERS[1:], *vllm, *own, *llama]),
        # vLLM's kernels for bfloat16 want a processor that has it
        "throughput-tiny-float32": throughput(
            "tiny", [*TRANSFORMERS[1:2], *vllm, *llama], dtype="float32"
        ),
        "throughput-tiny-one-at-a-time": throughput("tiny", TRANSFORMERS[:1], 1),
        "throughput-mid": throughput("mid", [*TRANSFORMERS[1:2], *vllm, *llama]),
        "throughput-moe": throughput(
            "moe", ["nanovllm-plain", *TRANSFORMERS[1:2], *vllm], min(rounds, 3)
        ),
        "throughput-mid-float32": throughput("mid", [*vllm, *llama], dtype="float32"),
        "latency-tiny": latency("tiny", [*TRANSFORMERS[:1], *vllm, *own, *llama]),
        "latency-mid": latency("mid", [*TRANSFORMERS[:1], *vllm, *llama]),
        **{
            f"latency-{model}-float32": latency(model, [*vllm, *llama], dtype="float32")
            for model in ("tiny", "mid")
        },
        **{
            f"{what}-bundled{suffix}": make("bundled", [*TRANSFORMERS[1:2], *vllm, *llama], **kind)
            for what, make in {"throughput": throughput, "latency": latency}.items()
            for suffix, kind in (("", {}), ("-float32", {"dtype": "float32"}))
        },
    }


def report(line: str) -> None:
    """Progress, on stderr."""
    Console(stderr=True).print(f"  {line}", style="dim", highlight=False, soft_wrap=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--vllm-python", help="the Python of an environment that has vllm")
    parser.add_argument("--llama-python", help="of one with llama-cpp-python, gguf, torch")
    parser.add_argument("--llama-speculative", help="llama.cpp's example llama-speculative-simple")
    parser.add_argument("--threads", type=int, default=usable_cpus())
    parser.add_argument("--quick", action="store_true", help="small numbers, to try it")
    parser.add_argument("--only", nargs="*", help="records to make; all by default")
    parser.add_argument("--anyway", action="store_true", help="on a busy machine, too")
    given = parser.parse_args()
    require_quiet(given.anyway or given.quick)
    plan = parts(
        given.quick, given.threads, given.vllm_python, given.llama_python, given.llama_speculative
    )
    names = given.only or [*plan, "planning_cost"]
    unknown = set(names) - {*plan, "planning_cost"}
    if unknown:
        parser.error(f"no record is called {', '.join(unknown)}; there are {', '.join(plan)}.")
    console, failed, begun = Console(), [], time.monotonic()
    for peer in ("vllm", "llama"):
        if getattr(given, f"{peer}_python") is None:
            console.print(f"{peer} is left out: name its environment's Python by --{peer}-python.")
    for place, name in enumerate(names, 1):
        minutes = (time.monotonic() - begun) / 60
        console.rule(f"{place} of {len(names)}: {name} ({minutes:.0f} min so far)")
        if name == "planning_cost":
            planning_cost.run(given.out, given.quick, report)
            continue
        try:
            outcome = plan[name]()
        except ContestantError as error:
            failed.append(name)
            console.print(f"[red]{error}[/]")
            continue
        for table in outcome.tables:
            console.print(table)
        save(outcome.record, given.out / f"{name}.json")
        outcome.plot(given.out / f"{name}.png")
    console.print(f"Done in {(time.monotonic() - begun) / 60:.1f} min; records in {given.out}.")
    sys.exit(f"Failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
