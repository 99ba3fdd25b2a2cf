"""A server of our own, in a process of its own, for as long as it is asked."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

import httpx

from nanovllm.bench.process import ROOT
from nanovllm.bench.serve_client import ServerError
from nanovllm.bench.stop_signals import signals_later

START_SECONDS = 600.0
STOP_SECONDS = 20.0


@contextmanager
def own_server(arguments: Sequence[str], **environment: str) -> Iterator[tuple[str, int]]:
    """Start `nanovllm serve` with these arguments on a free port; its address and process.

    It finds modules where this process does, but never in the current folder, which `-m` and the
    processes that it starts itself would search first.

    Raises:
        ServerError: it ended instead, with its last words.
    """
    command = [sys.executable, "-m", "nanovllm.cli", "serve", "--port", "0", "--drain-timeout", "1"]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with server_process(
        [*command, "--log-level", "error", *arguments],
        _announced,
        **{"PYTHONPATH": path, "PYTHONSAFEPATH": "1", **environment},
    ) as found:
        yield found


@contextmanager
def server_process(
    command: Sequence[str], find: Callable[[str], str | None], **environment: str
) -> Iterator[tuple[str, int]]:
    """Start a server and wait until it is healthy; its address and the id of its process.

    find: the address, from all that the server has said on stderr so far. Raises ServerError.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        process = None
        try:
            with signals_later():
                process = subprocess.Popen(
                    command, stdout=subprocess.DEVNULL, stderr=log, env=os.environ | environment
                )
            yield _wait(process, log, find), process.pid
        finally:
            if process is not None:
                _stop(process)


def _stop(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    finally:  # also when this wait is interrupted; nothing happens if it has ended
        process.kill()
        process.wait()


def _wait(
    process: subprocess.Popen,
    log: TextIO,
    find: Callable[[str], str | None],
) -> str:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        log.seek(0)
        said = log.read()
        if process.poll() is not None:
            lines = [line for line in said.splitlines() if line.strip()]
            words = lines[-1].removeprefix("nanovllm: ") if lines else "it said nothing"
            raise ServerError(f"the server did not start: {words}")
        address = find(said)
        if address and _is_healthy(address):
            return address
        time.sleep(0.1)
    raise ServerError(f"the server did not start within {START_SECONDS:.0f} seconds.")


def _announced(said: str) -> str | None:
    found = re.search(r"served at (http://\S+)/v1", said)
    return found[1] if found else None


def _is_healthy(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False
