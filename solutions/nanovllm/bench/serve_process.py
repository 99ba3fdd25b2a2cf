"""A server of our own, in a process of its own, for as long as it is measured."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import httpx

from nanovllm.bench.process import ROOT
from nanovllm.bench.serve_client import ServerError

START_SECONDS = 300.0
STOP_SECONDS = 20.0


@contextmanager
def own_server(arguments: Sequence[str]) -> Iterator[str]:
    """Start `nanovllm serve` with these arguments on a free port; its address.

    Raises:
        ServerError: it ended instead, with its last words.
    """
    command = [sys.executable, "-m", "nanovllm.cli", "serve", "--port", "0", "--drain-timeout", "1"]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(
            [*command, "--log-level", "error", *arguments],
            stdout=subprocess.DEVNULL, stderr=log, cwd=ROOT, env=os.environ | {"PYTHONPATH": path},
        )  # fmt: skip
        try:
            yield _address(process, log)
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _address(process: subprocess.Popen, log: tempfile._TemporaryFileWrapper) -> str:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        log.seek(0)
        said = log.read()
        if process.poll() is not None:
            lines = [line for line in said.splitlines() if line.strip()]
            words = lines[-1].removeprefix("nanovllm: ") if lines else "it said nothing"
            raise ServerError(f"the server did not start: {words}")
        found = re.search(r"served at (http://\S+)/v1", said)
        if found and _is_healthy(found[1]):
            return found[1]
        time.sleep(0.1)
    raise ServerError(f"the server did not start within {START_SECONDS:.0f} seconds.")


def _is_healthy(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False
