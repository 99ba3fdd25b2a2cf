"""The other end of the pipe: an engine in a process of its own, asked by JSON lines.

Standard library only, so that an engine that lives in another environment can use it as well.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Protocol, TextIO

_STARTED = time.perf_counter()  # before the engine's own imports


class Contestant(Protocol):
    """An engine under measurement."""

    def load(
        self, model: str, dtype: str, threads: int, max_model_len: int, max_num_seqs: int
    ) -> dict[str, Any]:
        """Get ready; returns facts for the record, such as versions."""
        ...

    def settle(self) -> None:
        """Wait until it is as fast as it will get; called once, after a first token."""

    # Where it counts something: counts() -> dict, which the record has beside its memory.

    def run(self, jobs: list[dict[str, Any]]) -> list[list[int]]:
        """Answer all jobs, {"prompt": ids, "max_tokens": n}, greedily; the new ids of each."""
        ...


def serve(contestant: Contestant) -> None:
    """Answer one JSON object a line until stdin ends; whatever else is printed goes to stderr."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            answer = _answer(contestant, json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        _send(replies, answer)


def _answer(contestant: Contestant, question: dict[str, Any]) -> dict[str, Any]:
    match question.pop("do"):
        case "load":
            facts = contestant.load(**question)
            contestant.run([{"prompt": list(range(1, 17)), "max_tokens": 1}])
            first = time.perf_counter() - _STARTED
            contestant.settle()
            ready = time.perf_counter() - _STARTED
            return {"facts": facts, "first_token_seconds": first, "ready_seconds": ready}
        case "run":
            start, cpu = time.perf_counter(), time.process_time()
            token_ids = contestant.run(question["jobs"])
            seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
            return {"seconds": seconds, "cpu_seconds": cpu, "token_ids": token_ids}
        case "memory":
            return {"peak_bytes": peak_bytes(), **getattr(contestant, "counts", dict)()}
        case other:
            raise ValueError(f"nobody knows how to do {other!r}")


def peak_bytes() -> int:
    """The most memory that this process ever had resident.

    Linux's getrusage carries the parent's peak over into a new program, so /proc goes first.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def _send(replies: TextIO, answer: dict[str, Any]) -> None:
    replies.write(json.dumps(answer) + "\n")
    replies.flush()
