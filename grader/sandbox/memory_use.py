"""What the processes of one submission use together, read from /proc by the fork server."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

PROC = Path("/proc")
KILLING_SECONDS = 10
FILES, BLOCK, DEEPEST = 20_000, 512, 64
THREADS = 16  # for each process that is allowed; a system has not many more than it has processes


def descendants(of: int) -> list[int]:
    """Every process below `of`, in any order."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir(PROC):
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                after_name = (PROC / entry / "stat").read_text().rpartition(")")[2].split()
                parents.setdefault(int(after_name[1]), []).append(int(entry))
    found, todo = [], [of]
    while todo:
        children = parents.get(todo.pop(), [])
        found += children
        todo += children
    return found


def born(pid: int) -> str:
    """When a process began, which tells it from another of the same number; "": there is none."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def memory_kb(pid: int) -> int:
    """Anonymous and shared memory of a process that is in RAM."""
    return _usage(pid)[0]


def _usage(pid: int) -> tuple[int, int]:
    """Memory of a process in kB, and its threads."""
    memory = threads = 0
    with contextlib.suppress(OSError, ValueError):
        for line in (PROC / str(pid) / "status").read_text().splitlines():
            if line.startswith(("RssAnon:", "RssShmem:", "VmSwap:")):
                memory += int(line.split()[1])
            elif line.startswith("Threads:"):
                threads = int(line.split()[1])
    return memory, threads


def excess(processes: int, memory_mb: int, warm_kb: int, pids: Sequence[int] | None = None) -> str:
    """Why the submission must be stopped, "" while it keeps within its limits.

    `warm_kb` is what every fork of the fork server shares with it from the start. pids: the
    submission's; all below this process if None.
    """
    if sys.platform != "linux":
        return ""
    found = descendants(os.getpid()) if pids is None else pids
    if len(found) > processes:
        return f"it started more than {processes} processes"
    uses = [_usage(pid) for pid in found]
    if sum(threads for _, threads in uses) > processes * THREADS:
        return f"it started more than {processes * THREADS} threads"
    if sum(max(0, memory - warm_kb) for memory, _ in uses) > memory_mb * 1024:
        return f"it used more than {memory_mb} MB of memory"
    return ""


def disk_excess(folder: str, disk_mb: int) -> str:
    """The same of what lies in a folder on the machine's own disk; "": there is none."""
    files = left = 0
    todo = [(folder, 0)] if folder else []
    while todo:
        path, depth = todo.pop()
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    files += 1
                    if files > FILES:
                        break
                    if entry.is_dir(follow_symlinks=False):
                        todo.append((entry.path, depth + 1))
                    left += entry.stat(follow_symlinks=False).st_blocks * BLOCK
        except FileNotFoundError:  # it has gone meanwhile
            continue
        except OSError as error:
            return f"its files cannot be counted: {error.strerror}"
        if files > FILES or left > disk_mb << 20:
            return f"it wrote more than {disk_mb} MB or {FILES} files"
        if depth > DEEPEST:
            return f"it made folders more than {DEEPEST} deep"
    return ""


def end_of(pid: int) -> list[int]:
    """A handle that can be read once a child has ended; none where the system has no such thing."""
    try:
        return [os.pidfd_open(pid)]
    except (AttributeError, OSError):  # not Linux, or it has ended already
        return []


def kill_all(child: int) -> None:
    """End the submission's process and all that it started, and reap them."""
    end = time.monotonic() + KILLING_SECONDS
    if sys.platform != "linux":
        with contextlib.suppress(OSError):
            os.killpg(child, signal.SIGKILL)
    while _reap() and time.monotonic() < end:
        found = descendants(os.getpid()) if sys.platform == "linux" else [child]
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def _reap() -> bool:
    """Collect the dead; whether any child is left."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return True
        except ChildProcessError:
            return False
