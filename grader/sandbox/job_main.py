"""The child of the worker: boxes itself in, unpacks the submission, does the work."""

from __future__ import annotations

import base64
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grader.course.paths import LABS, ROOT
from grader.sandbox import landlock, namespaces, process_rights
from grader.sandbox.job import Emit

MINE = "mine"
COPY = 1 << 16


def run(link: int, level: str, job: dict[str, Any]) -> None:
    """Do one piece of work, task after task; what is found goes out as lines of JSON on `link`.

    The first line that comes in is the submission; each of the others is a task, and comes when
    the one before it is done.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    _close_all_but(link)
    if level == "bubblewrap":
        namespaces.enter_box(job["disk_mb"])
    scratch = Path(job["scratch"] or namespaces.BOX)
    tempfile.tempdir = str(scratch)
    os.environ.update({"TMPDIR": str(scratch), "HOME": str(scratch)})
    if level == "landlock":
        null_device = Path(os.devnull)
        # Python and pytest list the course's folders; the names in them are no secret.
        landlock.restrict(
            [*map(Path, job["readable"]), null_device], [scratch, null_device], [ROOT, LABS.parent]
        )
    if level != "trusted":
        process_rights.limit(job["seconds"], job["memory_mb"], job["disk_mb"])
        if sys.platform == "linux":
            process_rights.drop_rights(level, job["locks"], alone=job["processes"] == 1)
    with open(link, "rb", closefd=False) as lines:
        _settle(json.loads(next(lines)), scratch)
        for line in lines:
            task = json.loads(line)
            _work(task)(task, _emitter(link))


def _settle(handed_in: dict[str, Any], scratch: Path) -> None:
    """Lay out the submission, and say to the course's code where it is."""
    _unpack(handed_in["files"], scratch / MINE)
    os.chdir(ROOT)
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(scratch / "hypothesis")
    os.environ["NANOVLLM_CODE"] = handed_in["code"]
    os.environ["NANOVLLM_MINE"] = str(scratch / MINE)


def _work(task: dict[str, Any]) -> Callable[[dict[str, Any], Emit], None]:
    from grader.sandbox import escape_probe, job_checks, job_race, job_scenarios

    return {
        "visible": job_checks.run,
        "hidden": job_scenarios.run,
        "replay": job_scenarios.replay,
        "judge": job_scenarios.judge,
        "listing": job_scenarios.listing,
        "probe": escape_probe.run,
        "race": job_race.run,
    }[task["kind"]]


def _unpack(files: dict[str, str], folder: Path) -> None:
    folder.mkdir()
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(content))


def _emitter(handle: int) -> Emit:
    def emit(
        event: dict[str, Any], write: Callable = os.write, dumps: Callable = json.dumps
    ) -> None:
        rest = memoryview(dumps(event).encode() + b"\n")
        while rest:
            rest = rest[write(handle, rest[:COPY]) :]

    return emit


def _close_all_but(link: int) -> None:
    os.closerange(3, link)
    os.closerange(link + 1, 1024)
