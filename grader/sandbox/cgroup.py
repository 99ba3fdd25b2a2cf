"""A control group of the kernel for each submission: all its memory and processes, in one sum.

Version 2 where this process's own group was handed over to it, as systemd's `Delegate=yes` and
containers do; else version 1's, as root. Without either the worker's looks into /proc are all there
is, which see no memory of the kernel. Where processors and disks have groups too, a submission's
processes together weigh as much as one of another's, and read and write at a limited rate.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from grader.course.paths import ROOT

KINDS = ("memory", "pids")  # without these there is no group
SHARES = ("cpu", "io", "blkio")  # with these where they are; version 1 says blkio for io
DISK_MB = 100  # that a group may read a second, and write
DISK_CALLS = 2000
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
    rate = DISK_MB << 20
    limits = [("memory.max", memory), ("memory.swap.max", 0), ("memory.limit_in_bytes", memory),
              ("memory.memsw.limit_in_bytes", memory),
              ("memory.kmem.tcp.limit_in_bytes", memory // 4), ("pids.max", processes)]  # fmt: skip
    for name, limit in limits:
        if (folder / name).exists():
            (folder / name).write_text(str(limit))
    for disk in disks():
        whole = f"{disk} rbps={rate} wbps={rate} riops={DISK_CALLS} wiops={DISK_CALLS}"
        limits = [("io.max", whole)]
        for way in ("read", "write"):
            limits += [(f"blkio.throttle.{way}_bps_device", f"{disk} {rate}"),
                       (f"blkio.throttle.{way}_iops_device", f"{disk} {DISK_CALLS}")]  # fmt: skip
        for name, limit in limits:
            if (folder / name).exists():
                with contextlib.suppress(OSError):  # some kinds of disks know no limit
                    (folder / name).write_text(limit)


@functools.cache
def disks() -> tuple[str, ...]:
    """The numbers of the disks, where the kernel tells them, that a submission can read."""
    found = set()
    for folder in (tempfile.gettempdir(), ROOT, sys.prefix, "/usr"):
        number = os.stat(folder).st_dev
        device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
        whole = device.parent if (device / "partition").exists() else device
        if (whole / "dev").exists():
            found.add((whole / "dev").read_text().strip())
    return tuple(sorted(found))


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
    offered = (home / "cgroup.controllers").read_text().split()
    if not set(KINDS) <= set(offered):
        return ()
    control = home / "cgroup.subtree_control"
    given = control.read_text().split()
    if home != Path(mount[4]) and not _delegated(home):
        return (home,) if set(KINDS) <= set(given) else ()
    try:
        control.write_text(" ".join(f"+{kind}" for kind in KINDS))
    except OSError:  # all but the machine's own first group: processes or groups
        (home / LEAF).mkdir(exist_ok=True)
        for pid in (home / "cgroup.procs").read_text().split():
            (home / LEAF / "cgroup.procs").write_text(pid)
        control.write_text(" ".join(f"+{kind}" for kind in KINDS))
    for kind in SHARES:
        with contextlib.suppress(OSError):  # it is not there, or in use elsewhere
            control.write_text(f"+{kind}")
    return (home,)


def _delegated(home: Path) -> bool:
    try:
        return os.getxattr(home, "user.delegate") == b"1"
    except OSError:
        return False


def _first(mounts: list[list[str]], own: dict[str, str]) -> tuple[Path, ...]:
    """Of version 1: below this process's group of each kind, where groups can be made."""
    found = {}
    for kind in (*KINDS, *SHARES):
        here = [one for one in mounts if one[one.index("-") + 1] == "cgroup"
                and kind in one[-1].split(",")]  # fmt: skip
        paths = [path for names, path in own.items() if kind in names.split(",")]
        with contextlib.suppress(OSError, IndexError):
            parent = _below(here[0], paths[0])
            Path(tempfile.mkdtemp(prefix="grading-", dir=parent)).rmdir()
            found[kind] = parent
    return tuple(dict.fromkeys(found.values())) if set(KINDS) <= set(found) else ()
