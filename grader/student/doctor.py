"""What is missing or wrong on this machine, and how to get it."""

from __future__ import annotations

import importlib.util
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from rich.console import Console
from rich.text import Text

from grader.course import checks_json
from grader.course.errors import LabError, sentence_of
from grader.course.lab_toml import labs
from grader.course.paths import MODELS, ROOT, student_package
from grader.student.model_files import weights_problem
from grader.student_files import state_file
from grader.student_files.lab_folder import edited_stubs

GOOD, NOTE, BAD = "good", "note", "bad"
PIN = re.compile(r"^([A-Za-z0-9_.-]+)==([^;\s]+)\s*(?:;\s*sys_platform\s*==\s*\"(\w+)\")?")
DISK_BYTES = 2 * 10**9
PROBE = """
import json, torch
a = torch.arange(6.0).reshape(2, 3)
right = (a @ a.T).tolist() == [[5.0, 14.0], [14.0, 50.0]]
cuda = torch.cuda.is_available()
name = torch.cuda.get_device_name(0) if cuda else ""
if cuda:
    right = right and (a.cuda() @ a.cuda().T).cpu().tolist() == [[5.0, 14.0], [14.0, 50.0]]
print(json.dumps({"right": right, "gpu": name, "mps": torch.backends.mps.is_available()}))
"""


@dataclass(frozen=True)
class Finding:
    """One thing looked at; `way_out` is what to do where it is not good."""

    level: str
    what: str
    found: str
    way_out: str = ""


def examine() -> Iterator[Finding]:
    """All findings, one after the other, slow ones last."""
    yield _python()
    yield from _packages()
    yield _installation()
    yield from _models()
    yield _disk()
    yield _writable("records", state_file.state_folder())
    yield _writable("your package", student_package())
    yield from _course_files()
    yield from _torch()
    yield _triton()


def _python() -> Finding:
    text = f"{platform.python_version()} at {sys.executable}"
    outside = sys.prefix == sys.base_prefix
    return Finding(
        NOTE if outside else GOOD,
        "Python",
        text,
        "a virtual environment keeps these packages apart: python -m venv .venv" if outside else "",
    )


def _packages() -> Iterator[Finding]:
    try:
        lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    except OSError:
        yield Finding(
            BAD, "packages", "requirements.txt is missing", "git checkout requirements.txt"
        )
        return
    pins = [match for match in map(PIN.match, lines) if match]
    wanted = [(m[1], m[2]) for m in pins if m[3] in (None, sys.platform) and m[1] != "triton"]
    good, get = 0, f"{Path(sys.executable).name} -m pip install -r requirements.txt"
    for name, version in wanted:
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield Finding(BAD, name, f"not installed; {version} wanted", get)
            continue
        if found.partition("+")[0] == version:
            good += 1
        else:
            yield Finding(NOTE, name, f"{found} installed, {version} wanted", get)
    yield Finding(
        GOOD if good == len(wanted) else NOTE,
        "packages",
        f"{good} of {len(wanted)} as pinned",
        "" if good == len(wanted) else get,
    )


def _installation() -> Finding:
    get = "python -m pip install -e . --no-deps (in the course's folder)"
    try:
        direct = metadata.distribution("nanovllm-labs").read_text("direct_url.json") or "{}"
    except metadata.PackageNotFoundError:
        return Finding(
            BAD,
            "installation",
            "the course is not installed, so `pytest` and your "
            "own scripts find nanovllm in this folder only",
            get,
        )
    spec = importlib.util.find_spec("nanovllm")
    place = Path(spec.origin).parent.parent if spec and spec.origin else None
    if place != ROOT:
        return Finding(BAD, "installation", f"`import nanovllm` finds {place}, not {ROOT}", get)
    if not json.loads(direct).get("dir_info", {}).get("editable"):
        return Finding(BAD, "installation", "a copy, not editable: your edits have no effect", get)
    if shutil.which("lab") is None:
        return Finding(
            NOTE,
            "installation",
            "editable, but `lab` is not on the PATH",
            "activate the environment: source .venv/bin/activate",
        )
    return Finding(GOOD, "installation", "editable, `lab` is on the PATH")


def _models() -> Iterator[Finding]:
    for name in ("target", "draft"):
        problem = weights_problem(MODELS / name)
        if problem:
            yield Finding(BAD, f"model {name}", problem, f"git checkout models/{name}")
        else:
            size = sum(path.stat().st_size for path in (MODELS / name).iterdir())
            yield Finding(GOOD, f"model {name}", f"complete, {size / 1e6:.1f} MB")


def _disk() -> Finding:
    free = shutil.disk_usage(ROOT).free
    level = GOOD if free > DISK_BYTES else BAD if free < DISK_BYTES / 20 else NOTE
    return Finding(
        level,
        "disk",
        f"{free / 1e9:.1f} GB free",
        "" if level == GOOD else "free some space; notebooks and backups need 2 GB",
    )


def _writable(what: str, folder: Path) -> Finding:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return Finding(BAD, what, sentence_of(error), f"chmod u+rwx {folder}")
    return Finding(GOOD, what, f"{folder} can be written")


def _course_files() -> Iterator[Finding]:
    landed = labs()
    for lab in landed:
        try:
            problems = [*checks_json.problems(lab), *map(str, edited_stubs(lab))]
        except (LabError, OSError, ValueError, KeyError, TypeError):
            problems = [f"labs/{lab.key}/checks.json cannot be read; git checkout labs/{lab.key}"]
        for problem in problems:
            found, _, way_out = problem.rpartition("; ")
            yield Finding(NOTE, lab.key, found, way_out)
        if not problems and not checks_json.read(lab).files:
            yield Finding(
                NOTE,
                lab.key,
                "no checks.json, so edits of checks go unnoticed",
                f"git checkout labs/{lab.key} (maintainers: python -m grader build)",
            )
    level, way_out = (GOOD, "") if landed else (BAD, "git checkout labs")
    yield Finding(level, "labs", f"{len(landed)} found", way_out)


def _torch() -> Iterator[Finding]:
    """Try torch in a process of its own: a wrong build may kill the one it is loaded in."""
    get = "python -m pip install --force-reinstall -r requirements.txt"
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=120
        )
    except subprocess.TimeoutExpired:
        yield Finding(BAD, "torch", "gave no answer in two minutes", get)
        return
    try:
        seen = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        yield Finding(BAD, "torch", f"cannot be used: {last}", get)
        return
    if seen["right"]:
        yield Finding(GOOD, "torch", "computes")
    else:
        yield Finding(BAD, "torch", "computes a wrong product", get)
    if seen["gpu"]:
        yield Finding(GOOD, "GPU", seen["gpu"])
    else:
        yield Finding(GOOD, "GPU", "none that CUDA sees; everything runs on the CPU")


def _triton() -> Finding:
    if sys.platform != "linux":
        return Finding(
            NOTE,
            "triton",
            f"there is none for {platform.system()}",
            "all labs but 06 work here; do lab 06 on a Linux machine",
        )
    if importlib.util.find_spec("triton") is None:
        return Finding(
            BAD,
            "triton",
            "not installed; lab 06 needs it",
            "python -m pip install -r requirements.txt",
        )
    return Finding(GOOD, "triton", "there (on a CPU through its interpreter)")


def show_finding(finding: Finding, console: Console) -> str:
    """Print one finding and return its level."""
    mark, style = {GOOD: ("✓", "green"), NOTE: ("!", "yellow"), BAD: ("✗", "red")}[finding.level]
    line = Text.assemble((f"{mark} ", style), (f"{finding.what:<15}", "bold"), f" {finding.found}")
    console.print(line, soft_wrap=True)
    if finding.way_out:
        console.print(Text(f"{'':18}→ {finding.way_out}", style=style), soft_wrap=True)
    return finding.level
