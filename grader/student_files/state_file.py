"""The file `.lab/state.json`: locked, written whole or not at all, mended when it is corrupt."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from grader.course.paths import ROOT

if sys.platform != "win32":  # there two processes at once may lose one's record
    import fcntl

LOCK_SECONDS = 5.0


class StateFileError(Exception):
    """The text of a state file that cannot be used; the message says why."""


def state_folder() -> Path:
    """The folder of the student's records; NANOVLLM_STATE names another one."""
    return Path(os.environ.get("NANOVLLM_STATE") or ROOT / ".lab").absolute()


def state_path() -> Path:
    return state_folder() / "state.json"


def read_json() -> dict:
    """The file's content, `{}` where there is none yet."""
    try:
        data = json.loads(state_path().read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise StateFileError(error.strerror or str(error)) from None
    except (ValueError, RecursionError) as error:
        raise StateFileError(f"not JSON: {error}") from None
    if not isinstance(data, dict):
        raise StateFileError(f"holds a {type(data).__name__} where an object belongs")
    return data


def write_json(data: dict) -> None:
    """Replace the file in one move, so that a reader or a crash never meets half of it."""
    write_whole(state_path(), (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode())


def write_whole(path: Path, content: bytes) -> None:
    """Write a file under a temporary name beside it, then rename it into place."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        if path.exists():
            temporary.chmod(path.stat().st_mode & 0o777)
        temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink()


def set_aside() -> Path:
    """Keep an unusable file under another name and return that name."""
    kept = state_path().with_name(f"state.json.broken-{timestamp()}")
    state_path().replace(kept)
    return kept


@contextmanager
def locked() -> Iterator[None]:
    """Hold the lock of the state folder; after a few seconds go on without it rather than hang."""
    state_folder().mkdir(parents=True, exist_ok=True)
    with open(state_folder() / "state.lock", "a", encoding="utf-8") as handle:
        if sys.platform != "win32":
            _acquire(handle.fileno())
        yield  # closing the file frees the lock


def _acquire(descriptor: int) -> None:
    deadline = time.monotonic() + LOCK_SECONDS
    while time.monotonic() < deadline:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(0.02)
        except OSError:  # some network file systems have no locks
            return


def timestamp() -> str:
    """The local time for a file name, to the millisecond so that two never meet."""
    return datetime.now().strftime("%Y%m%d-%H%M%S-%f")[:-3]
