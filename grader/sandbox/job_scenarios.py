"""In the child: scenarios on the student's package; in the trusted child: on the reference."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from grader.checks import kernel_plans, observation_json, scenarios
from grader.checks.compiled import compiled
from grader.checks.kernel_text import ALONE
from grader.checks.scenarios import Scenario
from grader.course.lab_toml import find_lab
from grader.sandbox.job import Emit


def listing(task: dict[str, Any], emit: Emit) -> None:
    """In the trusted child: send the name and task of every scenario of the lab."""
    for scenario in _load(task):
        emit({"scenario": scenario.name, "task": scenario.task})


def run(task: dict[str, Any], emit: Emit) -> None:
    """Send what each scenario observes at each seed; no verdict is made where this runs."""
    import nanovllm

    for item, scenario, seed in _items(task):
        emit({"start": item})
        planned = scenario.name.startswith(ALONE)
        kernel_plans.mode = kernel_plans.Planned() if planned else kernel_plans.Direct()
        emit({"item": item, **_observe(scenario, nanovllm, seed)})
    emit({"done": True})


def replay(task: dict[str, Any], emit: Emit) -> None:
    """Run plans of kernels, where nothing of the student is but these kernels.

    In the first draw the compiler has to take them, too: what it refuses is not Triton.
    """
    for item, scenario, seed in _items(task):
        emit({"start": item})
        try:
            plans = [*observation_json.decode(task["plans"][item]).values()]
            about = task["modules"], task["factors"]
            found = _follow(scenario, seed, plans, *about, compile=item.endswith("#0"))
        except Exception as error:  # whatever was sent, it is no plan
            found = {"raised": type(error).__name__[:100]}
        emit({"item": item, **found})
    emit({"done": True})


def _follow(
    scenario: Scenario, seed: int, plans: list[Any], modules: Any, factors: int, *, compile: bool
) -> dict[str, Any]:
    """What a scenario observes whose calls go by these plans."""
    import nanovllm

    with tempfile.TemporaryDirectory() as folder:

        def run(dtype: Any = None, odd: bool = False) -> dict[str, Any]:
            drawn = torch.Generator().manual_seed(factors)
            kernel_plans.mode = kernel_plans.Replayed(iter(plans), modules, folder, drawn)
            return _observe(scenario, nanovllm, seed)

        found = run()
        if compile:
            kernels = compiled(run, kernel_plans.COMPILED_FOR, quick=True)
            launches = sum(len(plan["launches"]) for plan in plans)
            if len(kernels) < launches or any(kernel.refused for kernel in kernels):
                return {"raised": "CompilationError"}
        return found


def judge(task: dict[str, Any], emit: Emit) -> None:
    """Run the scenarios on the reference, and send whether the student's observations agree.

    An item without an observation raised an error at the student's: it may at the reference too.
    """
    import nanovllm

    for item, scenario, seed in _items(task):
        drawn = torch.Generator().manual_seed(task["factors"])
        kernel_plans.mode = kernel_plans.Direct(drawn)
        expected = _observe(scenario, nanovllm, seed)
        if "data" not in expected:
            emit({"item": item, "broken": expected["raised"]})
        elif item in task["observed"]:
            emit({"item": item, **_compare(task["observed"][item], expected["data"])})
        else:
            emit({"item": item, "agrees": False, "where": ""})
    emit({"done": True})


def _items(task: dict[str, Any]) -> list[tuple[str, Scenario, int]]:
    """The wanted draws: `name#draw`, its scenario and its seed, in the order of the scenarios."""
    wanted = set(task["items"])
    drawn = [
        (f"{scenario.name}#{draw}", scenario, seed)
        for scenario in _load(task)
        for draw, seed in enumerate(task["seeds"])
    ]
    return [entry for entry in drawn if entry[0] in wanted]


def _compare(observed: Any, expected: Any) -> dict[str, Any]:
    try:
        if json.dumps(observed) == json.dumps(expected):  # the same bits, as most answers are
            return {"agrees": True, "where": ""}
        found = scenarios.judge(
            observation_json.decode(observed), observation_json.decode(expected)
        )
    except Exception as error:  # whatever it is that was sent, it is no right answer
        return {"agrees": False, "where": f"not comparable: {type(error).__name__}"}
    return {"agrees": found is None, "where": "; ".join(found.lines)[:500] if found else ""}


def _observe(scenario: Scenario, nanovllm: Any, seed: int) -> dict[str, Any]:
    try:
        return {"data": observation_json.encode(scenario.observe(nanovllm, seed))}
    except NotImplementedError as error:
        return {"raised": "NotImplementedError", "todo": str(error)[:200]}
    except Exception as error:
        return {"raised": type(error).__name__[:100]}


def _load(task: dict[str, Any]) -> list[Scenario]:
    """The scenarios from the sources that came with the task: the box has no folder of them."""
    lab = find_lab(task["lab"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / lab.key
        folder.mkdir()
        for file, source in task["sources"].items():
            (folder / file).write_text(source, encoding="utf-8")
        return scenarios.load(lab, Path(name))
