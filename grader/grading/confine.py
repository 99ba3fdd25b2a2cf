"""Put this process into a box of its own: namespaces, or landlock, and resource limits.

Runs in a child just forked from the warm template, before a byte of the submission is looked at.
Inside bubblewrap the child gets user, mount, process, IPC and network namespaces of its own, so
that it sees no process, file or port of the template or of any other submission.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import platform
import resource
import socket
import struct
import sys
from pathlib import Path

from grader.grading import calls

CLONE_NEWNS, CLONE_NEWIPC = 0x0002_0000, 0x0800_0000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x1000_0000, 0x2000_0000, 0x4000_0000
SET_INTERFACE_FLAGS, INTERFACE_UP = 0x8914, 1
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 2, 4, 8, 0x4000, 0x4_0000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_RELATIME = 1, 32, 4096, 1 << 21
KEPT_FLAGS, ST_RELATIME = 1024 | 2048 | MS_NOSUID | MS_NODEV | MS_NOEXEC, 4096
DEVICES = ("full", "null", "pts", "random", "tty", "urandom", "zero")
PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_SET_CHILD_SUBREAPER = 4, 24, 38, 36
LAST_CAPABILITY = 63
CAPABILITY_VERSION = 0x2008_0522
KEYCTL = {"x86_64": 250, "aarch64": 219}
KEYCTL_JOIN_SESSION_KEYRING = 1
MEGABYTE = 1 << 20
FACTS = ("cpuinfo", "meminfo", "stat")
FILES = "nr_inodes=20000"  # an empty file is a kilobyte of the kernel's memory
BOX = "/box"  # the submission's only writable folder inside bubblewrap

_libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: object) -> int:
    """A function of the C library; OSError where it fails."""
    result = getattr(_libc, name)(*arguments)
    if result == -1:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
    return result


def undumpable() -> None:
    """No other process of this user may trace this one or read its memory."""
    if sys.platform == "linux":
        call("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0)


def adopt_orphans() -> None:
    """Processes whose parent has died become this process's children, wherever they hide."""
    if sys.platform == "linux":
        call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def enter_namespaces(disk_mb: int) -> int:
    """Return 0 in a new process that is alone in its world, its process id in the one before."""
    own_mounts(CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWNET)
    child = os.fork()
    if child:
        return child
    for folder, size in ((BOX, disk_mb), ("/dev/shm", disk_mb)):
        _mount("tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV, f"size={size}m,{FILES},mode=1777")
    _mount_proc()
    _loopback()
    return 0


def _loopback() -> None:
    """Bring up the new network's only interface: servers and clients of one submission meet there.

    Of a network that many shared, ports and counters would tell one submission of another.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", INTERFACE_UP)
        fcntl.ioctl(any_socket, SET_INTERFACE_FLAGS, request)


def own_mounts(also: int = 0) -> None:
    """A user and a mount namespace of this process's own, `also` others; devices cannot be marked.

    They are the machine's own: root's modes and times on them would outlast the box.
    """
    user, group = os.getuid(), os.getgid()
    call("prctl", PR_SET_DUMPABLE, 1, 0, 0, 0)  # or /proc/self/uid_map cannot be written
    call("unshare", CLONE_NEWUSER | CLONE_NEWNS | also)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _mount("none", "/", "", MS_REC | MS_PRIVATE)
    for path in (f"/dev/{name}" for name in DEVICES if os.path.exists(f"/dev/{name}")):
        found = os.statvfs(path).f_flag
        kept = found & KEPT_FLAGS | (MS_RELATIME if found & ST_RELATIME else 0)
        _mount("none", path, "", MS_REMOUNT | MS_BIND | MS_RDONLY | kept)


def _mount_proc() -> None:
    """A /proc of the new process namespace; where the kernel refuses, a few plain facts alone."""
    facts = {name: Path("/proc", name).read_bytes() for name in FACTS}
    try:
        _mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
        Path("/proc/sys/user/max_user_namespaces").write_text("0")
    except OSError:
        _mount("tmpfs", "/proc", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=1m,mode=555")
        for name, content in facts.items():
            Path("/proc", name).write_bytes(content)


def drop_rights() -> None:
    """No capabilities, no way to gain any, a keyring of its own."""
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    for number in range(LAST_CAPABILITY + 1):
        with contextlib.suppress(OSError):
            call("prctl", PR_CAPBSET_DROP, number, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    call("capset", header, (ctypes.c_uint32 * 6)())
    if platform.machine() in KEYCTL:
        with contextlib.suppress(OSError):
            call("syscall", KEYCTL[platform.machine()], KEYCTL_JOIN_SESSION_KEYRING, None)
    calls.refuse()


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


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    call("mount", source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags),
         data.encode() or None)  # fmt: skip
