"""A user of the system whom submissions run as, where root grades: what is root's stays closed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

KILLING_SECONDS = 10


def rights(user: int | None) -> dict[str, Any]:
    """For `subprocess`: as this user, in the group of the same number alone; None: as ourselves."""
    return {} if user is None else {"user": user, "group": user, "extra_groups": []}


def end_all(user: int) -> None:
    """End every process of a user, however fast they fork; OSError where some go on.

    The kernel signals all of them in one call, which the user makes themselves.
    """
    if not user:
        raise ValueError("the processes of root are not ended")
    end = time.monotonic() + KILLING_SECONDS
    while running(user):
        if time.monotonic() > end:
            raise OSError(f"processes of user {user} cannot be ended")
        _signal_all(user)
        time.sleep(0.01)


def _signal_all(user: int) -> None:
    pid = os.fork()
    if not pid:
        try:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            os.kill(-1, signal.SIGKILL)  # reached as this user only
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def running(user: int) -> list[int]:
    """The numbers of a user's processes that have not ended."""
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            text = status.read_text()
        except OSError:  # it has ended
            continue
        facts = {words[0]: words[1:] for words in map(str.split, text.splitlines())}
        if str(user) in facts["Uid:"] and facts["State:"][0] not in ("Z", "X"):
            found.append(int(status.parent.name))
    return found
