"""The system calls that a submission may make; any other is answered as by an older kernel.

The list is that of the container runtimes' default profile without what no lab needs: what looks
at or changes more of the machine than a submission has to do with, holds memory that is not
mapped, tells one box of another (locks and watches on files that both see, what lies in the page
cache), or builds another world inside the box.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import itertools
import os
import socket
import struct
import sys

from grader.sandbox.libc import call

ALLOWED = """
accept accept4 access alarm arch_prctl bind brk capget chdir chmod chown clock_getres
clock_gettime clock_nanosleep close close_range copy_file_range creat dup dup2 dup3 epoll_create
epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 execve execveat exit
exit_group faccessat faccessat2 fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat
fdatasync fgetxattr flistxattr fork fstat fstatfs fsync ftruncate futex futex_requeue futex_wait
futex_waitv futex_wake futimesat get_robust_list getcpu getcwd getdents getdents64 getegid geteuid
getgid getgroups getitimer getpeername getpgid getpgrp getpid getppid getpriority getrandom
getresgid getresuid getrlimit getrusage getsid getsockname getsockopt gettid gettimeofday getuid
getxattr ioctl kill lchown lgetxattr link linkat listen listxattr llistxattr lseek lstat madvise
map_shadow_stack membarrier mkdir mkdirat mmap mprotect mremap mseal msync munmap nanosleep
newfstatat open openat openat2 pause pidfd_open pidfd_send_signal pipe pipe2 poll ppoll prctl
pread64 preadv pselect6 pwrite64 pwritev read readlink readlinkat
readv recvfrom recvmmsg recvmsg rename renameat renameat2 restart_syscall rmdir rseq
rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend
rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min sched_getaffinity
sched_getattr sched_getparam sched_getscheduler sched_yield select sendfile
sendmmsg sendmsg sendto set_robust_list set_tid_address setitimer setpgid setrlimit
setsid setsockopt shutdown sigaltstack signalfd signalfd4 stat statfs statx symlink symlinkat
sysinfo tgkill time timer_create timer_delete timer_getoverrun timer_gettime timer_settime
timerfd_create timerfd_gettime timerfd_settime times tkill truncate umask uname unlink unlinkat
utime utimensat utimes vfork wait4 waitid write writev
"""
MARKING = (
    "chmod chown fchmod fchmodat fchmodat2 fchown fchownat futimesat lchown utime utimensat utimes"
)
OTHERS = "setpriority sched_setaffinity sched_setattr sched_setparam sched_setscheduler"
WHOSE = {"setpriority": 1}  # which argument says whose; the first of the others
COMMANDS = (fcntl.F_DUPFD, fcntl.F_DUPFD_CLOEXEC, fcntl.F_GETFD, fcntl.F_SETFD, fcntl.F_GETFL,
            fcntl.F_SETFL)  # fmt: skip
LOCKS = (fcntl.F_GETLK, fcntl.F_SETLK, fcntl.F_SETLKW)  # of parts of files, as SQLite's
NAMESPACES = 0x7E02_0000  # CLONE_NEW*, each kind
CLONE_THREAD = 0x1_0000
KIND = 0xF  # of a socket, below its flags
UNKNOWN = -1  # a call that is younger than libseccomp
PR_SET_SECCOMP, MODE_FILTER = 22, 2


def missing() -> str:
    """Why this machine has no such filter; "" where it has."""
    try:
        for asked in itertools.product((False, True), repeat=3):
            program(*asked)
    except (ImportError, OSError, RuntimeError) as error:
        return f"system calls cannot be filtered: {error} (`apt-get install libseccomp2`)"
    return ""


def refuse(on_paths: bool = False, locks: bool = False, alone: bool = False) -> None:
    """From now on only the calls of the list work in this process and its children.

    on_paths: the files of the whole machine have their names here, as under landlock, which
    guards neither marks on them nor sockets: nothing can be marked (what changes a file's mode is
    answered as if it had), no socket reaches another process, and no other's priority is changed
    (that is answered so, too).
    locks: files can be locked, also those that other boxes see.
    alone: no further process may be started, also none in this one's place; threads may. Nothing
    wakes it while it is stopped.
    """
    code = program(on_paths, locks, alone)
    buffer = ctypes.create_string_buffer(code)
    filters = struct.pack("H6xP", len(code) // 8, ctypes.addressof(buffer))
    call("prctl", PR_SET_SECCOMP, MODE_FILTER, filters, 0, 0)


@functools.cache
def program(on_paths: bool, locks: bool, alone: bool) -> bytes:
    """The filter as the kernel takes it; made once in the fork server, for all its forks."""
    assert sys.platform == "linux"
    from pyseccomp import ALLOW, EQ, ERRNO, MASKED_EQ, NE, Arch, Arg, Attr, SyscallFilter
    from pyseccomp import resolve_syscall as number_of

    rules = SyscallFilter(ERRNO(errno.ENOSYS))
    rules.set_attr(Attr.ACT_BADARCH, ERRNO(errno.ENOSYS))
    refused = {"fork", "vfork", "execve", "execveat", "timer_create"} if alone else set()
    for name in [*ALLOWED.split(), *["flock"] * locks]:
        if name not in refused and number_of(Arch.NATIVE, name) != UNKNOWN:
            marks = on_paths and name in MARKING.split()
            done = ERRNO(0 if "mod" in name else errno.EPERM)
            rules.add_rule(done if marks else ALLOW, name)
    for name in ("preadv2", "pwritev2"):  # with RWF_NOWAIT they tell what lies in the page cache
        rules.add_rule(ALLOW, name, Arg(5, EQ, 0))
    rules.add_rule(ALLOW, "prlimit64", Arg(0, EQ, 0))  # of no other process
    for name in OTHERS.split():
        place = WHOSE.get(name, 0)
        rules.add_rule(ALLOW, name, *[Arg(place, EQ, 0)] * on_paths)
        if on_paths:  # threads have numbers, too, and ZeroMQ insists on their priority
            rules.add_rule(ERRNO(0), name, Arg(place, NE, 0))
    thread = CLONE_THREAD if alone else 0
    rules.add_rule(ALLOW, "clone", Arg(0, MASKED_EQ, NAMESPACES | thread, thread))
    for command in (*COMMANDS, *LOCKS * locks):
        rules.add_rule(ALLOW, "fcntl", Arg(1, EQ, command))
    stream = Arg(1, MASKED_EQ, KIND, socket.SOCK_STREAM)
    if on_paths:
        rules.add_rule(ALLOW, "socket", Arg(0, EQ, socket.AF_UNIX), stream)
        rules.add_rule(ALLOW, "socketpair", Arg(0, EQ, socket.AF_UNIX), stream)
    else:
        rules.add_rule(ALLOW, "connect")
        rules.add_rule(ALLOW, "socketpair", Arg(0, EQ, socket.AF_UNIX))
        for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6):
            rules.add_rule(ALLOW, "socket", Arg(0, EQ, family))
        route = Arg(2, EQ, 0)  # of netlink, what getifaddrs asks for
        rules.add_rule(ALLOW, "socket", Arg(0, EQ, socket.AF_NETLINK), route)
    out, into = os.pipe()  # which holds more than a filter may have
    with open(out, "rb") as code, open(into, "wb") as file:
        rules.export_bpf(file)
        file.close()
        return code.read()
