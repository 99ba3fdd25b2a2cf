"""A process that is alone in its world: namespaces of its own, inside those of bubblewrap.

A worker owns a user namespace (`own_users`); each piece of work is forked into a process
namespace of its own (`fork_apart`), where it makes the rest (`enter_box`), so that it sees no
process and no file of the worker or of any other submission.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path

from grader.sandbox.libc import call
from grader.sandbox.process_rights import PR_SET_DUMPABLE, undumpable

CLONE_NEWNS, CLONE_NEWIPC = 0x0002_0000, 0x0800_0000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x1000_0000, 0x2000_0000, 0x4000_0000
SET_INTERFACE_FLAGS, INTERFACE_UP = 0x8914, 1
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 2, 4, 8, 0x4000, 0x4_0000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_RELATIME = 1, 32, 4096, 1 << 21
KEPT_FLAGS, ST_RELATIME = 1024 | 2048 | MS_NOSUID | MS_NODEV | MS_NOEXEC, 4096
DEVICES = ("full", "null", "pts", "random", "tty", "urandom", "zero")
FILES = "nr_inodes=20000"  # an empty file is a kilobyte of the kernel's memory
FACTS = ("cpuinfo", "meminfo", "stat")
BOX = "/box"  # the submission's only writable folder inside bubblewrap


def own_users() -> None:
    """A user namespace of its own, in which this process may make namespaces of other kinds."""
    _own_users(os.open("/proc", os.O_PATH))
    undumpable()


def fork_apart(child: Callable[[], object]) -> int:
    """Fork a process that is the first of a process namespace, and calls `child`; its number.

    `child` must not return. The process that calls this must have called `own_users`.
    """
    started: list[int] = []

    def fork() -> None:
        # In a thread, since it stays so: what this thread forks is alone, the others' is not.
        call("unshare", CLONE_NEWPID)
        number = os.fork()
        if not number:
            child()
        started.append(number)

    thread = threading.Thread(target=fork)
    thread.start()
    thread.join()
    if not started:
        raise OSError("no process namespace could be made")
    return started[0]


def enter_box(disk_mb: int) -> None:
    """Called by what `fork_apart` has forked: folders, /proc, ports and users of its own.

    Of a network that several shared, ports and counters would tell one submission of another.
    """
    before = os.open("/proc", os.O_PATH)
    call("unshare", CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWNET)
    _private_mounts()
    for folder, size in ((BOX, disk_mb), ("/dev/shm", disk_mb)):
        _mount("tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV, f"size={size}m,{FILES},mode=1777")
    _mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666")
    own = _mount_proc()
    _loopback()
    # After the mounts, which are the right of the worker's users, not of the submission's.
    _own_users(before)
    with contextlib.suppress(OSError):  # no /proc was to be had
        _write(own, "sys/user/max_user_namespaces", "0")
    os.close(own)


def own_mounts() -> None:
    """Users and mounts of this process's own, for one that is alone in bubblewrap already."""
    _own_users(os.open("/proc", os.O_PATH), CLONE_NEWNS)
    _private_mounts()


def _private_mounts() -> None:
    """What is mounted here is seen here alone, and devices cannot be marked.

    They are the machine's own: root's modes and times on them would outlast the box.
    """
    _mount("none", "/", "", MS_REC | MS_PRIVATE)
    for path in (f"/dev/{name}" for name in DEVICES if os.path.exists(f"/dev/{name}")):
        found = os.statvfs(path).f_flag
        kept = found & KEPT_FLAGS | (MS_RELATIME if found & ST_RELATIME else 0)
        _mount("none", path, "", MS_REMOUNT | MS_BIND | MS_RDONLY | kept)


def _loopback() -> None:
    """Bring up the new network's only interface: a submission's servers and clients meet there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", INTERFACE_UP)
        fcntl.ioctl(any_socket, SET_INTERFACE_FLAGS, request)


def _own_users(proc: int, also: int = 0) -> None:
    """New users, and `also` other kinds of namespaces that belong to them.

    proc: /proc as it was before anything was mounted over it; it is closed.
    """
    user, group = os.getuid(), os.getgid()
    call("prctl", PR_SET_DUMPABLE, 1, 0, 0, 0)  # or the maps cannot be written
    call("unshare", CLONE_NEWUSER | also)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"),
                       ("gid_map", f"{group} {group} 1")):  # fmt: skip
        _write(proc, f"self/{name}", text)
    os.close(proc)


def _write(folder: int, name: str, text: str) -> None:
    with open(os.open(name, os.O_WRONLY, dir_fd=folder), "w", encoding="ascii") as file:
        file.write(text)


def _mount_proc() -> int:
    """A /proc of the new process namespace, to read; where the kernel refuses, a few plain facts
    alone. The handle can be written to: its files tell who else reads what of this process."""
    facts = {name: Path("/proc", name).read_bytes() for name in FACTS}
    try:
        _mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    except OSError:
        _mount("tmpfs", "/proc", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=1m,mode=555")
        for name, content in facts.items():
            Path("/proc", name).write_bytes(content)
    own = os.open("/proc", os.O_PATH)
    _mount("/proc", "/proc", "", MS_BIND)
    kept = MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RELATIME
    _mount("none", "/proc", "", MS_REMOUNT | MS_BIND | MS_RDONLY | kept)
    return own


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    call("mount", source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags),
         data.encode() or None)  # fmt: skip
