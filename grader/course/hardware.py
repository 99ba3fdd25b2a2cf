"""What labs and tasks ask of the machine: what stands in the way, and what was not verified."""

from __future__ import annotations

import importlib.util
import platform
import sys

from grader.course.lab_toml import Lab, Task

NOT_VERIFIED = "not verified on a GPU"


def obstacle(lab: Lab) -> str:
    """Why a lab cannot be done here, in one sentence; "" when it can."""
    if lab.machine != "triton" or importlib.util.find_spec("triton") is not None:
        return ""
    if sys.platform == "linux":
        return f"{lab.key} needs Triton: `python -m pip install -r requirements.txt` brings it."
    return (
        f"{lab.key} needs Triton, and there is none for {platform.system()}: do it on a Linux "
        "machine (no GPU is needed there); all other labs work here."
    )


def unverified(task: Task) -> str:
    """What a passed check of the task has not shown here; "" when it has shown everything."""
    if task.machine != "triton":
        return ""
    runtime = sys.modules.get("nanovllm.kernels.runtime")
    return NOT_VERIFIED if runtime is None or runtime.INTERPRETED else ""
