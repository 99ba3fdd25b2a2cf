"""Take rights and room from this process: capabilities, time, memory, disk.

Runs in a child just forked from the worker, before a byte of the submission is looked at.
"""

from __future__ import annotations

import contextlib
import ctypes
import platform
import resource
import sys
from pathlib import Path

from grader.sandbox import seccomp
from grader.sandbox.libc import call

PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_SET_CHILD_SUBREAPER = 4, 24, 38, 36
LAST_CAPABILITY = 63
CAPABILITY_VERSION = 0x2008_0522
KEYCTL = {"x86_64": 250, "aarch64": 219}
KEYCTL_JOIN_SESSION_KEYRING = 1
MEGABYTE = 1 << 20


def undumpable() -> None:
    """No other process of this user may trace this one or read its memory."""
    if sys.platform == "linux":
        call("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0)


def adopt_orphans() -> None:
    """Processes whose parent has died become this process's children, wherever they hide."""
    if sys.platform == "linux":
        call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def drop_rights(level: str, locks: bool = False, alone: bool = False) -> None:
    """No capabilities, no way to gain any, a keyring of its own, and the system calls of the list.

    alone: no process may be started below it.

    Where system calls cannot be filtered there is the level of limits alone, and it goes without.
    """
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    for number in range(LAST_CAPABILITY + 1):
        with contextlib.suppress(OSError):
            call("prctl", PR_CAPBSET_DROP, number, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    call("capset", header, (ctypes.c_uint32 * 6)())
    if platform.machine() in KEYCTL:
        with contextlib.suppress(OSError):
            call("syscall", KEYCTL[platform.machine()], KEYCTL_JOIN_SESSION_KEYRING, None)
    if level != "limits" or not seccomp.missing():
        seccomp.refuse(level == "landlock", locks, alone)


def limit(seconds: int, memory_mb: int, disk_mb: int) -> None:
    """CPU time, address space beyond what is mapped now, size of a file, open files, no dumps."""
    _set(resource.RLIMIT_CORE, 0)
    _set(resource.RLIMIT_CPU, seconds)
    _set(resource.RLIMIT_FSIZE, disk_mb * MEGABYTE)
    _set(resource.RLIMIT_NOFILE, 512)
    if sys.platform == "linux":
        _set(resource.RLIMIT_AS, _mapped() + memory_mb * MEGABYTE)


def _set(which: int, value: int) -> None:
    hard = resource.getrlimit(which)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (value, value))


def _mapped() -> int:
    with contextlib.suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        return pages * resource.getpagesize()
    return 8192 * MEGABYTE
