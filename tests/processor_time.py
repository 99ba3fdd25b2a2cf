"""Processor minutes of `make test` by area, beside what each may take; told, never failed."""

from __future__ import annotations

import os
import re
import resource
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from grader.course.lab_toml import labs
from grader.sandbox.memory_use import descendants

WHOLE = 20.0  # ten minutes on two processors
LAB = 0.6
AREAS = {  # minutes, and how the names of its files begin
    "grading and nbgrader": (4.0, ("grading", "nbgrader", "gradescope")),
    "server and clients": (2.0, ("serving", "server_fields", "bench_serve", "speculative_serving",
                                 "structured_serving", "serve_config")),
    "engine": (3.0, ("adaptive_budget", "ahead_engine", "async_llm", "at_work", "batching", "bench",
                     "checkpoints", "compaction", "compiled", "devices", "fast", "gpu", "kernels",
                     "llm", "lora", "models", "nanovllm", "option_pairs", "paging", "parallel",
                     "priorities", "prompt_logprobs", "real_model", "seams", "sentencepiece",
                     "speculative", "structured_output", "swap_space", "tiny", "transformers")),
}  # fmt: skip
OF_LABS = {  # files that are about one lab, beside its own package's
    "quant": "lab09", "w4a16": "lab09", "cluster": "lab11", "resilience": "lab12",
    "monitoring": "lab13", "prometheus": "lab13", "traces": "lab13",
    "moe": "lab14", "profile": "lab14", "race": "lab14",
}  # fmt: skip
LINT, LINT_MINUTES = "lint and types", 2.0
REST = "everything else"


def area(test: str) -> str:
    """The area of a test, by its id: the lab that it is about, else that of its file."""
    if found := re.search(r"[\[-](lab\d\d)[\]-]", test):
        return found[1]
    name = Path(test.partition("::")[0]).stem.removeprefix("test_")
    known = {begin: each for each, (_, begins) in AREAS.items() for begin in begins} | OF_LABS
    return next((known[begin] for begin in known if name.startswith(begin)), REST)


def limits() -> dict[str, float]:
    """Minutes by area; everything else may take what is left."""
    found = {LINT: LINT_MINUTES, **dict.fromkeys((lab.key for lab in labs()), LAB)}
    found |= {name: minutes for name, (minutes, _) in AREAS.items()}
    return found | {REST: WHOLE - sum(found.values())}


def used() -> float:
    """Seconds of this process and all that it started.

    Not those of a process that was killed together with the one that would have waited for it.
    """
    ended = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    below = descendants(os.getpid()) if sys.platform == "linux" else []
    living = (_ticks(pid, 11, 15) for pid in below)
    return sum(one.ru_utime + one.ru_stime for one in ended) + sum(living)


def before() -> float:
    """Seconds of what `make` has run before this: setup and lint; 0 where it was not make."""
    pid = os.getppid()
    while pid > 1 and sys.platform == "linux":
        if Path("/proc", str(pid), "comm").read_text() == "make\n":
            return _ticks(pid, 13, 15)
        pid = int(_fields(pid)[1])
    return 0.0


def _ticks(pid: int, first: int, end: int) -> float:
    return sum(map(int, _fields(pid)[first:end])) / os.sysconf("SC_CLK_TCK")


def _fields(pid: int) -> list[str]:
    """/proc's numbers on a process from its state on; zeros when it has gone."""
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["0"] * 15


def table(seconds: Counter[str]) -> Iterator[str]:
    """Lines of the table."""
    minutes = {name: seconds[name] / 60 for name in limits()}
    yield "Processor minutes, and how many there may be:"
    for name, limit in (limits() | {"all": WHOLE}).items():
        spent = minutes.get(name, sum(minutes.values()))
        yield f"  {name:22}{spent:6.1f}{limit:6.1f}{'  too many' * (spent > limit)}"
