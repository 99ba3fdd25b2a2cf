"""Change many files of the course at once: whoever stops half-way finds all old or all new.

The new files are laid out under `.lab`, then one rename says that they count, then each is moved to
its place. `grader/__init__.py` calls `finish` first of all, so that whatever runs next completes
what was cut off. Nothing but Python's own library is used, since other modules may be half new.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

if sys.platform != "win32":
    import fcntl

ROOT = Path(__file__).resolve().parents[2]
STAGED, READY, DONE, LOCK = (
    ROOT / ".lab" / f"update.{name}" for name in ("staged", "ready", "done", "lock")
)


def switch(changes: Mapping[str, bytes | None], backup: Path) -> None:
    """Write these files, by their paths in the course, and remove those that are None.

    What they replace is in `backup` before that. OSError where it cannot be done: then everything
    is as it was.
    """
    for folder in (STAGED, backup):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    for name, data in changes.items():
        if (ROOT / name).is_file():
            _copy(ROOT / name, backup / name)
        if data is not None:
            (STAGED / "new" / name).parent.mkdir(parents=True, exist_ok=True)
            (STAGED / "new" / name).write_bytes(data)
    plan = {"write": [name for name in changes if changes[name] is not None],
            "remove": [name for name in changes if changes[name] is None],
            "backup": str(backup)}  # fmt: skip
    (STAGED / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    with _undisturbed():
        STAGED.rename(READY)
        try:
            finish()
        except OSError:
            (READY / "back").touch()
            finish()
            raise


def finish() -> None:
    """Complete a switch that was cut off, if there is one; of several processes, one does it."""
    if READY.is_dir():
        with LOCK.open("a") as lock:
            if sys.platform != "win32":
                with suppress(OSError):  # some network file systems have no locks
                    fcntl.flock(lock, fcntl.LOCK_EX)
            if READY.is_dir():
                _finish()


def _finish() -> None:
    plan = json.loads((READY / "plan.json").read_text(encoding="utf-8"))
    (_back if (READY / "back").exists() else _forward)(plan["write"], plan["remove"], plan)
    shutil.rmtree(DONE, ignore_errors=True)
    READY.rename(DONE)
    shutil.rmtree(DONE, ignore_errors=True)


def _forward(write: list[str], remove: list[str], plan: dict) -> None:
    for name in write:
        if (READY / "new" / name).exists():  # else it was moved before the cut
            (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
            (READY / "new" / name).replace(ROOT / name)
    for name in remove:
        (ROOT / name).unlink(missing_ok=True)
        with suppress(OSError):  # it holds something else
            (ROOT / name).parent.rmdir()


def _back(write: list[str], remove: list[str], plan: dict) -> None:
    moved = [name for name in write if not (READY / "new" / name).exists()]
    for name in (*moved, *remove):
        kept = Path(plan["backup"]) / name
        if kept.exists():
            _copy(kept, ROOT / name)
        else:
            (ROOT / name).unlink(missing_ok=True)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f".{target.name}.tmp")
    shutil.copy2(source, beside)
    beside.replace(target)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Without Ctrl-C, for the moment that the moves take."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
