"""Landlock: files, TCP and signals denied by the kernel to a process that asks for it itself.

The second rung, for Linux machines on which bubblewrap cannot run. Numbers are those of
`linux/landlock.h`; rights that an older kernel does not know are left out, and UDP is not covered.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path

from grader.sandbox.process_rights import PR_SET_NO_NEW_PRIVS, call

CREATE, ADD_RULE, RESTRICT = 444, 445, 446  # the same on every architecture
VERSION_FLAG = 1
PATH_BENEATH = 1
READ = 1 << 0 | 1 << 2 | 1 << 3  # execute, read file, read folder
LIST = 1 << 3
ON_FILES = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15  # the rights that a single file can have
FILES_BY_VERSION = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
TCP = 1 << 0 | 1 << 1
SCOPES = 1 << 0 | 1 << 1  # abstract sockets, signals


def version() -> int:
    """The kernel's landlock version; 0 where there is none."""
    try:
        return call("syscall", CREATE, None, 0, VERSION_FLAG)
    except (OSError, AttributeError):
        return 0


def restrict(
    readable: Iterable[Path], writable: Iterable[Path], listable: Iterable[Path] = ()
) -> None:
    """From now on this process and its children reach these paths only; OSError where it fails.

    Below `listable` folders names can be listed, and no file be read.
    """
    found = version()
    if not found:
        raise OSError("this kernel has no landlock")
    files = max(rights for since, rights in FILES_BY_VERSION.items() if since <= found)
    parts = [files] + [TCP] * (found >= 4) + [SCOPES] * (found >= 6)
    attributes = struct.pack(f"={len(parts)}Q", *parts)
    ruleset = call("syscall", CREATE, attributes, ctypes.c_size_t(len(attributes)), 0)
    for paths, rights in ((readable, READ), (writable, files), (listable, LIST)):
        for path in paths:
            if path.exists():
                _allow(ruleset, path, rights & files)
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    call("syscall", RESTRICT, ruleset, 0)
    os.close(ruleset)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        allowed = rights if path.is_dir() else rights & ON_FILES
        rule = struct.pack("=Qi", allowed, handle)
        call("syscall", ADD_RULE, ruleset, PATH_BENEATH, rule, 0)
    finally:
        os.close(handle)
