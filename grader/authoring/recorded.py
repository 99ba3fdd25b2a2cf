"""`recorded.json`: what the reference does with random inputs, for checks without a model of it."""

from __future__ import annotations

import importlib.util
import json
import os

from grader.checks.run_checks import fresh_processes
from grader.course.digest import RECORDED_RUNS
from grader.course.lab_toml import Lab
from grader.course.paths import RECORDED


def recorded(lab: Lab) -> dict[str, str]:
    """Name -> text: what `record()` of `solutions/recorded/labNN.py` returns, where it is there."""
    if not (RECORDED / f"{lab.key}.py").is_file():
        return {}
    [runs] = fresh_processes(_record, [lab.key], 1)
    lines = ",\n".join(json.dumps(run, separators=(",", ":")) for run in runs)
    return {RECORDED_RUNS: f"[\n{lines}\n]\n"}


def _record(key: str) -> list:
    os.environ["NANOVLLM_CODE"] = "reference"
    spec = importlib.util.spec_from_file_location(f"recorded_{key}", RECORDED / f"{key}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.record()
