"""`python -m grader.student.demo 05`: a lab's demo, on the student's code where there is some."""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from pathlib import Path

from grader.checks.unwritten import absent_symbols, unwritten
from grader.course.errors import LabError
from grader.course.lab_toml import Lab, find_lab, labs
from grader.course.paths import ROOT, student_package


def require_demo(lab: Lab) -> Path:
    path = lab.folder / "demo.py"
    if not path.is_file():
        raise LabError(f"labs/{lab.key}/demo.py is missing; `git checkout labs/{lab.key}/demo.py`.")
    return path


def command(lab: Lab) -> tuple[list[str], dict[str, str]]:
    """The command and environment that run a demo in the default import mode."""
    environment = {name: value for name, value in os.environ.items() if name != "NANOVLLM_CODE"}
    return [sys.executable, "-m", "grader.student.demo", f"{lab.number:02d}"], environment


def missing_task(lab: Lab) -> int | None:
    """The first task that the demo needs and that is not written in the student's files."""
    if not lab.started:
        return None
    return min((a.task for a in absent_symbols(lab) if a.task in lab.demo), default=None)


def play(lab: Lab) -> int:
    """Run the demo's `main()`; an error of the student's code is told in a few lines.

    What is known to be missing is told at once, before torch and a model are loaded.
    """
    path = require_demo(lab)
    missing = None if os.environ.get("NANOVLLM_CODE") else missing_task(lab)
    if missing is not None:
        print(_needs(lab, lab.key, missing), file=sys.stderr)
        return 1
    spec = importlib.util.spec_from_file_location(f"demo_of_{lab.key}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(ROOT))
    sys.modules[spec.name] = module  # dataclasses look their module up there
    try:
        spec.loader.exec_module(module)
        module.main()
    except Exception as error:
        print(_told(lab, error), file=sys.stderr)
        return 1
    return 0


def _needs(lab: Lab, key: str, task: int) -> str:
    return (
        f"The demo of {lab.key} needs {key} task {task}, which is not written yet: "
        f"lab check {key[3:]} --task {task}"
    )


def _told(lab: Lab, error: Exception) -> str:
    absent = unwritten(error)
    if absent:
        return _needs(lab, absent.lab, absent.task)
    below = {f"nanovllm.{one.package}" for one in labs()} - {f"nanovllm.{lab.package}"}
    if isinstance(error, ModuleNotFoundError) and error.name in below:
        return f"The demo of {lab.key} runs on an engine, with the labs below: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(student_package())]
    place = own[-1] if own else frames[-1]
    file = Path(place.filename)
    name = file.relative_to(ROOT) if file.is_relative_to(ROOT) else file
    return (
        f"The demo of {lab.key} stopped: {type(error).__name__}: {error}\n"
        f"  at {name}:{place.lineno} in {place.name}: {place.line}\n"
        f"lab check {lab.number:02d} says more."
    )


if __name__ == "__main__":
    try:
        sys.exit(play(find_lab(sys.argv[1])))
    except LabError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
