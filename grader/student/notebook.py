"""What course notebooks use: self-checks, cells that wait for a task, and one look of pictures."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from cycler import cycler

from grader.checks.unwritten import unwritten
from grader.course.lab_toml import find_lab
from grader.course.paths import ROOT

# Okabe and Ito's colours, which are told apart without telling red from green.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")


def style(grid: bool = True) -> None:
    """Set the look of all pictures; "C0", "C1", ... are the COLOURS."""
    import matplotlib.pyplot as plt

    plt.rcParams.update(
        {
            "figure.dpi": 110,
            "font.size": 9,
            "axes.grid": grid,
            "axes.prop_cycle": cycler(color=COLOURS),
            "axes.spines.right": False,
            "axes.spines.top": False,
            "grid.alpha": 0.3,
        }
    )


def check_task(lab: str, task: int) -> float | None:
    """Run the checks of one task on your code, record them as pytest does, print the report.

    nbgrader gets the points earned; for a person they stand in the report.
    """
    from grader.course.errors import LabError
    from grader.course.outcome import Outcome, Status
    from grader.student import run_pytest
    from grader.student_files import lab_state

    if os.environ.get("NBGRADER_EXECUTION") == "autograde":
        return 0.0  # the course's own report replaces this cell's output
    found, persons = find_lab(lab), _is_a_persons_run()
    try:
        command = run_pytest.command(found, task)
    except LabError as error:
        print(error)
        return None if persons else 0.0
    measured_on = lab_state.digest(found) if found.started else ""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.json"
        command += ["--color=no", "--record", str(record)]
        if os.environ.get("NANOVLLM_CODE") == "reference":
            command.append("--reference")
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        print(_summary_first(done.stdout or done.stderr, f" {found.key} {found.title} ("))
        entries = json.loads(record.read_text())["outcomes"] if record.is_file() else []
    outcomes = [Outcome(**{**entry, "status": Status(entry["status"])}) for entry in entries]
    if not persons:
        return float(sum(outcome.earned for outcome in outcomes))
    digest = measured_on or lab_state.digest(found)
    if outcomes and (warning := lab_state.record_run(found.key, "isolated", outcomes, digest)):
        print(warning)
    return None


def _summary_first(text: str, head: str) -> str:
    """A notebook is read from the top: how the task stands, then a card for each failed check."""
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("=") and head in line]
    if not starts:
        return text
    cards = lines.index(next((line for line in lines if " FAILURES " in line), lines[starts[0]]))
    return "\n".join([*lines[starts[0] :], *lines[cards + 1 : starts[0]]])


def predict(lab: str, key: str, value: float | None = None) -> float | None:
    """Record a guess and return it; without one, show the question. Guess again at any time."""
    from grader.course.errors import LabError
    from grader.student import predict as predictions

    found = find_lab(lab)
    try:
        question = predictions.question(found, key)
        if value is None or value is ...:
            print(f"{question.text} Write your guess ({question.unit}) into this cell.")
            return None
        if _is_a_persons_run():
            return predictions.guess(found, key, value)
        return predictions.number(value)
    except LabError as error:
        print(error)
        return None


def answer(lab: str, key: str) -> float | None:
    """Print your guess and the answer of your own code, once its tasks pass, and return it."""
    from grader.course.errors import LabError
    from grader.student import predict as predictions
    from grader.student_files import lab_state

    found = find_lab(lab)
    try:
        question, records = predictions.question(found, key), lab_state.load()
        if not _is_a_persons_run():  # a run of the course itself, as of the instructor's version
            return predictions.computed(found, question)
        print(predictions.told(found, question, records))
        open_now = predictions.is_open(question, records.lab(found.key))
        return predictions.computed(found, question) if open_now else None
    except LabError as error:
        print(error)
        return None


def _is_a_persons_run() -> bool:
    return not os.environ.get("NBGRADER_EXECUTION") and not os.environ.get("NANOVLLM_CODE")


def plots_of(lab: str) -> ModuleType:
    """The drawing of a lab's notebook, from `labs/labNN/plots.py`, in the course's look."""
    path = find_lab(lab).folder / "plots.py"
    if not path.is_file():
        restored = f"`git checkout {shlex.quote(str(path))}` restores it"
        raise FileNotFoundError(f"{path} is missing; {restored}")
    spec = importlib.util.spec_from_file_location(f"plots_of_{path.parent.name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    style()
    return module


def movable(draw: Callable[..., object], **choices: Sequence[Any]) -> None:
    """A picture that moves: `draw(axes, name=value, ...)` with a slider for each list of choices.

    Where nobody can move it (a printed page, a run without a browser) it is small multiples: one
    for each of up to six values of the first argument, the others in the middle of their choices.
    """
    import matplotlib.pyplot as plt

    if _has_widgets():
        import ipywidgets
        from IPython.display import display

        def show(**values: Any) -> None:
            figure, axes = plt.subplots(figsize=(5, 3))
            draw(axes, **values)
            plt.show()
            plt.close(figure)

        sliders = {
            name: ipywidgets.SelectionSlider(
                options=list(values), value=_middle(values), description=name
            )
            for name, values in choices.items()
        }
        display(*sliders.values(), ipywidgets.interactive_output(show, sliders))
        return
    name, values = next(iter(choices.items()))
    others = {other: _middle(options) for other, options in choices.items() if other != name}
    step = -(-len(values) // 6)
    picked = list(values)[::step]
    figure, rows = plt.subplots(
        1, len(picked), figsize=(2.2 * len(picked), 2.4), sharey=True, squeeze=False
    )
    for axes, value in zip(rows[0], picked, strict=True):
        draw(axes, **{name: value}, **others)
        axes.set_title(f"{name} = {value}")
    figure.tight_layout()
    plt.show()
    plt.close(figure)


def _middle(values: Sequence[Any]) -> Any:
    return list(values)[len(values) // 2]


def _has_widgets() -> bool:
    """Whether a person sits before it: Jupyter's server and VS Code say so in the environment."""
    found = importlib.util.find_spec("ipywidgets") is not None
    here = {"JPY_SESSION_NAME", "VSCODE_PID", "VSCODE_CWD"} & os.environ.keys()
    return found and bool(here) and _is_a_persons_run()


@contextlib.contextmanager
def needs(lab: str, *tasks: int) -> Iterator[None]:
    """Let a cell end early, with one line, while one of these tasks is not written yet.

    So also for a task of a lower lab, which comes from the student where there is no reference.
    """
    key = find_lab(lab).key
    try:
        yield
    except (NotImplementedError, ImportError, AttributeError) as error:
        absent = unwritten(error)
        if type(error) is NotImplementedError and not str(error):  # nbgrader's, of an experiment
            print("This cell needs your function above. Write it, then run the cell again.")
            return
        if not absent or absent.lab > key or (absent.lab == key and absent.task not in tasks):
            raise
        text = str(error) if isinstance(error, NotImplementedError) else str(absent)
        print(f"This cell needs {text}. Write it, then run the cell again.")
