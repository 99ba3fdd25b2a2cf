"""The environment of a worker, and the bubblewrap command in front of it."""

from __future__ import annotations

from grader.course.lab_toml import Lab
from grader.course.paths import LABS, ROOT
from grader.sandbox import visible_files
from grader.sandbox.namespaces import BOX

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "LANG": "C.UTF-8",
    "USER": "student",
    "HOME": BOX,
    "TMPDIR": BOX,
    "PATH": "/usr/bin:/bin",
}


def environment(lab: Lab | None) -> dict[str, str]:
    """Of the worker of a lab, whose checks may be those of an earlier release."""
    return {**ENVIRONMENT, "PYTHONPATH": str(ROOT), "NANOVLLM_LABS": str(lab.home if lab else LABS)}


def bubblewrap(lab: Lab) -> list[str]:
    """The command in front of the worker of a lab."""
    command = ["bwrap", "--unshare-all", "--new-session", "--clearenv"]
    for name, value in environment(lab).items():
        command += ["--setenv", name, value]
    command += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", BOX]
    shown = [*visible_files.machine(), *visible_files.course(lab)]
    if not any(path.is_relative_to("/tmp") for path in shown):
        command += ["--symlink", BOX, "/tmp"]
    for path in shown:
        command += ["--ro-bind", str(path), str(path)]
    # Nothing that outlives a submission may be writable: each gets memory of its own at BOX.
    return [*command, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", str(ROOT), "--"]
