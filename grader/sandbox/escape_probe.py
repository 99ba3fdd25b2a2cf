"""In the child: try to leave the box, and say what was possible."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from grader.sandbox.job import Emit


def run(task: dict[str, Any], emit: Emit) -> None:
    """Send which of the forbidden things worked; all must fail for the sandbox to be called one."""
    tries: dict[str, Callable[[], Any]] = {
        **{f"read {path}": Path(path).read_bytes for path in task["must_not_read"]},
        **{f"write {path}": partial(_write, Path(path)) for path in task["must_not_write"]},
    }
    tries["signal the grader"] = lambda: os.kill(task["grader"], 0)
    tries["open a connection"] = lambda: socket.create_connection(("127.0.0.1", task["port"]), 2)
    tries["reach a socket by its path"] = lambda: socket.socket(socket.AF_UNIX).connect(
        task["socket"]
    )
    # Of these two the grader sees whether they worked.
    _works(lambda: os.chmod(task["file"], 0o777))
    _works(lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"out", tuple(task["datagrams"])))
    emit({"possible": [name for name, attempt in tries.items() if _works(attempt)]})
    emit({"done": True})


def _works(attempt: Callable[[], Any]) -> bool:
    try:
        attempt()
    except OSError:
        return False
    return True


def _write(folder: Path) -> None:
    path = folder / f".probe-{os.getpid()}"
    path.touch()
    path.unlink()
