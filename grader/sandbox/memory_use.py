"""What the processes of one submission use together, read from /proc by the fork server."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

PROC = Path("/proc")
KILLING_SECONDS = 10
FILES, BLOCK = 20_000, 512
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


def excess(processes: int, memory_mb: int, warm_kb: int) -> str:
    """Why the submission must be stopped, "" while it keeps within its limits.

    `warm_kb` is what every fork of the fork server shares with it from the start.
    """
    if sys.platform != "linux":
        return ""
    found = descendants(os.getpid())
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
    for top, folders, names in os.walk(folder) if folder else ():
        files += len(folders) + len(names)
        for name in names if files <= FILES else ():
            with contextlib.suppress(OSError):
                left += os.lstat(os.path.join(top, name)).st_blocks * BLOCK
        if files > FILES or left > disk_mb << 20:
            return f"it wrote more than {disk_mb} MB or {FILES} files"
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
