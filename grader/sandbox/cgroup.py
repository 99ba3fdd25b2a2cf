"""A control group of the kernel for each submission: all its memory and processes, in one sum.

Version 2 where this process's own group was handed over to it, as systemd's `Delegate=yes` and
containers do; else version 1's memory and pids, as root. Without either the worker's looks into
/proc are all there is, which see no memory of the kernel.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

KINDS = ("memory", "pids")
LEAF = "grader"  # where the grader itself moves: a group of version 2 has processes or groups
OWN_MB = 512  # what a fork may come to copy of the memory that it shares with its fork server
END_SECONDS = 5
UNCOUNTED = (
    "Memory and processes were counted by looking ten times a second: this machine gives the "
    "grader no control group of its own."
)


class Group:
    """One submission's group: a folder in each hierarchy that counts."""

    def __init__(self, folders: list[Path]) -> None:
        self.folders = folders

    def add(self, pid: int) -> None:
        """From now on this process and what it starts are counted here."""
        for folder in self.folders:
            (folder / "cgroup.procs").write_text(str(pid))

    def entered_by(self, command: list[str]) -> list[str]:
        """The command that enters the group first."""
        enter = [f"echo $$ > {shlex.quote(str(one / 'cgroup.procs'))}" for one in self.folders]
        return ["sh", "-ec", "; ".join([*enter, 'exec "$@"']), "sh", *command] if enter else command

    @property
    def out_of_memory(self) -> bool:
        """Whether the kernel has ended a process of it for its memory."""
        files = [
            one / name for one in self.folders for name in ("memory.events", "memory.oom_control")
        ]
        lines = [line.split() for file in files if file.exists() for line in file.open()]
        return any(name == "oom_kill" and int(number) for name, number in lines)

    def _close(self) -> None:
        end = time.monotonic() + END_SECONDS
        for folder in self.folders:
            while folder.exists() and time.monotonic() < end:
                with contextlib.suppress(OSError):
                    for pid in (folder / "cgroup.procs").read_text().split():
                        os.kill(int(pid), signal.SIGKILL)
                with contextlib.suppress(OSError):
                    folder.rmdir()
                    break
                time.sleep(0.01)


@contextlib.contextmanager
def group(memory_mb: int, processes: int) -> Iterator[Group]:
    """A group with these limits for a moment, without any where the machine has none."""
    made = Group([])
    try:
        for parent in _parents():
            made.folders.append(folder := Path(tempfile.mkdtemp(prefix="grading-", dir=parent)))
            _limit(folder, memory_mb << 20, processes)
        yield made
    finally:
        made._close()


def _limit(folder: Path, memory: int, processes: int) -> None:
    limits = {"memory.max": memory, "memory.swap.max": 0, "memory.limit_in_bytes": memory,
              "memory.memsw.limit_in_bytes": memory, "memory.kmem.tcp.limit_in_bytes": memory // 4,
              "pids.max": processes}  # fmt: skip
    for name, limit in limits.items():
        if (folder / name).exists():
            (folder / name).write_text(str(limit))


def missing() -> bool:
    """Whether there are no groups here."""
    return not _parents()


@functools.cache
def _parents() -> tuple[Path, ...]:
    """The folders in which groups can be made; none where memory or processes go uncounted."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        own = dict(
            line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines()
        )
        return _second(mounts, own.get("")) or _first(mounts, own)
    except OSError:
        return ()


def _below(mount: list[str], path: str) -> Path:
    return Path(mount[4], os.path.relpath(path, mount[3]))


def _second(mounts: list[list[str]], path: str | None) -> tuple[Path, ...]:
    """Of version 2: this process's group, which may be its own to divide."""
    mount = next((one for one in mounts if one[one.index("-") + 1] == "cgroup2"), None)
    if mount is None or path is None:
        return ()
    home = _below(mount, path)
    home = home.parent if home.name == LEAF else home
    if not set(KINDS) <= set((home / "cgroup.controllers").read_text().split()):
        return ()
    control = home / "cgroup.subtree_control"
    if not set(KINDS) <= set(control.read_text().split()):
        if home != Path(mount[4]) and os.getxattr(home, "user.delegate") != b"1":
            return ()
        (home / LEAF).mkdir(exist_ok=True)
        for pid in (home / "cgroup.procs").read_text().split():
            (home / LEAF / "cgroup.procs").write_text(pid)
        control.write_text(" ".join(f"+{kind}" for kind in KINDS))
    return (home,)


def _first(mounts: list[list[str]], own: dict[str, str]) -> tuple[Path, ...]:
    """Of version 1: below this process's group of each kind, where groups can be made."""
    found = []
    for kind in KINDS:
        here = [one for one in mounts if one[one.index("-") + 1] == "cgroup"
                and kind in one[-1].split(",")]  # fmt: skip
        paths = [path for names, path in own.items() if kind in names.split(",")]
        if not here or not paths:
            return ()
        parent = _below(here[0], paths[0])
        Path(tempfile.mkdtemp(prefix="grading-", dir=parent)).rmdir()
        found.append(parent)
    return tuple(found)
