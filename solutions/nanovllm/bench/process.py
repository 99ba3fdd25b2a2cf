"""This end of the pipe: start a contestant's process, ask it, stop it."""

import json
import os
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import nanovllm

ROOT = Path(nanovllm.__file__).resolve().parent.parent
_LAST_LINES = 6  # of a dead process's stderr, for the error


class ContestantError(RuntimeError):
    """A contestant's process ended, or could not do what it was asked."""


class Process:
    """One contestant, running: `ask` waits for its answer, so only one ever computes."""

    def __init__(self, name: str, command: list[str], threads: int, **environment: str) -> None:
        self.name = name
        self.log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environment = {
            "PYTHONPATH": path, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false", **environment,
        }  # fmt: skip
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
            encoding="utf-8", cwd=ROOT, env=os.environ | environment,
        )  # fmt: skip
        assert self.process.stdin is not None and self.process.stdout is not None
        self._stdin, self._stdout = self.process.stdin, self.process.stdout

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Send a question and return its answer. Raises ContestantError."""
        try:
            self._stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._stdin.flush()
            line = self._stdout.readline()
        except BrokenPipeError:
            line = ""
        answer = json.loads(line) if line else {"error": f"its process ended: {self._last_words()}"}
        if "error" in answer:
            raise ContestantError(f"{self.name} cannot {do}: {answer['error']}")
        return answer

    def _last_words(self) -> str:
        self.log.seek(0)
        lines = [line.strip() for line in self.log.readlines() if line.strip()]
        return " / ".join(lines[-_LAST_LINES:]) or "it said nothing"

    def close(self) -> None:
        """End the process: it leaves when its stdin ends, else it is killed."""
        self._stdin.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._stdout.close()
        self.log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: object, trace: TracebackType | None) -> None:
        self.close()
