"""The levels of confinement, and what shows that one of them does not hold.

bubblewrap; else landlock with resource limits; else limits alone, with a warning that every report
repeats. macOS has limits alone.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import sys
import tempfile
from pathlib import Path

from grader.course.lab_toml import Lab
from grader.course.paths import LABS, ROOT
from grader.sandbox import landlock, seccomp, visible_files
from grader.sandbox.job import Work
from grader.sandbox.limits import Limits
from grader.sandbox.worker import Worker

LEVELS = ("bubblewrap", "landlock", "limits")
UNSANDBOXED = (
    "UNSANDBOXED: this machine offers neither bubblewrap nor landlock, so the submission ran with "
    "your own rights, limited in time and memory only. Grade on Linux with bubblewrap installed "
    "(`apt-get install bubblewrap`), or read the code first."
)


def missing(level: str) -> str:
    if level == "limits":
        return ""
    if sys.platform != "linux":
        return "it is there on Linux only"
    if why := seccomp.missing():
        return why
    if level == "bubblewrap" and not shutil.which("bwrap"):
        return "bwrap is not installed (`apt-get install bubblewrap`)"
    if level == "landlock" and landlock.version() < 1:
        return "this kernel has no landlock"
    return ""


def break_out(worker: Worker, lab: Lab) -> str:
    """What a process in the box could do that it must not; "" when nothing."""
    with (
        tempfile.TemporaryDirectory() as folder,
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_server(f"{folder}/socket", family=socket.AF_UNIX),
        socket.socket(type=socket.SOCK_DGRAM) as datagrams,
    ):
        file = Path(folder, "file")
        file.touch(0o600)
        datagrams.bind(("127.0.0.1", 0))
        task = {
            "kind": "probe",
            "must_not_read": [str(path) for path in visible_files.forbidden(lab)],
            "must_not_write": [str(ROOT), str(LABS), "/usr", "/var/tmp"],
            "grader": os.getpid(),
            "port": server.getsockname()[1],
            "socket": f"{folder}/socket",
            "file": str(file),
            "datagrams": datagrams.getsockname(),
        }
        answer = worker.run(Work(lab.key, [task]), Limits(), 30).of_tasks[0]
        outside = ["mark another's file"] if file.stat().st_mode & 0o777 != 0o600 else []
        outside += ["send a datagram"] if select.select([datagrams], [], [], 0)[0] else []
    found = [event["possible"] for event in answer.events if "possible" in event]
    if not found:
        crash = [
            event["crash"].strip().splitlines()[-1] for event in answer.events if "crash" in event
        ]
        return f"its probe did not run ({'; '.join(crash) or answer.ended})"
    possible = found[0] + outside
    return f"a process in it could {', '.join(possible)}" if possible else ""
