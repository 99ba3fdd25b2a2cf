"""System calls that no lab needs and by which memory could be held that no limit counts.

A memfd, a System V segment or a key holds memory without being mapped; the others look into, or
at, more of the machine than a submission has to do with, or build another world inside the box.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

from grader.sandbox.libc import call

REFUSED = {  # from the kernel's tables; the names in the order of the numbers
    # memfd_create, memfd_secret, shmget, msgget, add_key, request_key, keyctl, io_uring_setup,
    # userfaultfd, bpf, perf_event_open, ptrace, process_vm_readv, process_vm_writev,
    # unshare, setns, mount, umount2, pivot_root, chroot
    "x86_64": (319, 447, 29, 68, 248, 249, 250, 425, 323, 321, 298, 101, 310, 311,
               272, 308, 165, 166, 155, 161),
    "aarch64": (279, 447, 194, 186, 217, 218, 219, 425, 282, 280, 241, 117, 270, 271,
                97, 268, 40, 39, 41, 51),
}  # fmt: skip
# clone, clone3, fork, vfork; the last two are not everywhere
PROCESSES = {"x86_64": (56, 435, 57, 58), "aarch64": (220, 435)}
CLONE_THREAD = 0x1_0000
ARCHITECTURE = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
LOAD, EQUAL, ABOVE, HAS, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER_AT, ARCHITECTURE_AT, ARGUMENT_AT = 0, 4, 16  # in what the kernel shows to the filter
OTHER_TABLE = 0x4000_0000  # x86-64's second way to call the same
ALLOW, ERROR = 0x7FFF_0000, 0x0005_0000
PR_SET_SECCOMP, MODE_FILTER = 22, 2


def refuse(alone: bool = False) -> None:
    """From now on these calls fail in this process and its children; not where unknown.

    alone: no further process may be started; threads may.
    """
    machine = platform.machine()
    if machine in REFUSED:
        processes = PROCESSES[machine] if alone else ()
        filters = _filters(REFUSED[machine] + processes[2:], processes, ARCHITECTURE[machine])
        code = ctypes.create_string_buffer(b"".join(filters))
        program = struct.pack("H6xP", len(filters), ctypes.addressof(code))
        call("prctl", PR_SET_SECCOMP, MODE_FILTER, program, 0, 0)


def _filters(
    refused: tuple[int, ...], processes: tuple[int, ...], architecture: int
) -> list[bytes]:
    of_processes = _of_processes(*processes[:2]) if processes else []
    last = len(refused) + len(of_processes) + 4  # the error's place; the one before it lets pass
    tests = [(EQUAL, number, last - place, 0) for place, number in enumerate(refused, 4)]
    program = [
        (LOAD, ARCHITECTURE_AT, 0, 0),
        (EQUAL, architecture, 0, last - 1),
        (LOAD, NUMBER_AT, 0, 0),
        (ABOVE, OTHER_TABLE, last - 3, 0),
        *tests,
        *of_processes,
        (RETURN, ALLOW, 0, 0),
        (RETURN, ERROR | errno.EPERM, 0, 0),
    ]
    return [struct.pack("HBBI", code, yes, no, value) for code, value, yes, no in program]


def _of_processes(clone: int, clone3: int) -> list[tuple[int, int, int, int]]:
    """Falls through to "lets pass" unless a process is to be made.

    The flags of clone3 cannot be seen; where it is not there, the C library uses clone.
    """
    return [
        (EQUAL, clone3, 0, 1),
        (RETURN, ERROR | errno.ENOSYS, 0, 0),
        (EQUAL, clone, 0, 3),
        (LOAD, ARGUMENT_AT, 0, 0),
        (HAS, CLONE_THREAD, 1, 0),
        (RETURN, ERROR | errno.EPERM, 0, 0),
    ]
